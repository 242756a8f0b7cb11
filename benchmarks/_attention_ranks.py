"""One sequence over gloo processes: PyTorch's experimental context parallelism and ours."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.spawn import ProcessRaisedException, spawn

from benchmarks._attention_kernels import Unable
from parallel.context import Comm, ContextAttention
from parallel.groups import Groups
from parallel.layout import ShardedDense, split_evenly
from parallel.topology import Topology
from parallel.traffic import Traffic

PEER = "torch context_parallel, MATH"
OURS: dict[str, Comm] = {"vfm ring": "p2p", "vfm gather": "all_gather", "vfm a2a": "a2a"}
WAYS = (PEER, *OURS)


@dataclass(frozen=True)
class Found:
    seconds: float
    """CPU time of a forward and backward: the median over rounds of the slowest process."""
    error: float
    """Largest difference of the output from one process in float64."""
    num_bytes: int | None
    """Sent in a forward and backward by the rank that sends most, where it is counted."""


def over_ranks(
    way: str, *, ranks: int, tokens: int, heads: int, head_dim: int, rounds: int
) -> Found:
    """Raises `Unable` where a process fails."""
    with tempfile.TemporaryDirectory() as folder:
        answers = get_context("spawn").SimpleQueue()
        args = (ranks, way, tokens, heads, head_dim, rounds, folder, answers)
        try:
            spawn(_rank, args=args, nprocs=ranks)
        except ProcessRaisedException as error:
            raise Unable(str(error).strip().splitlines()[-1]) from None
        found = [answers.get() for _ in range(ranks)]
    seconds = [max(times) for times in zip(*(times for times, _, _ in found), strict=True)]
    sent = [num_bytes for _, _, num_bytes in found if num_bytes is not None]
    error = max(error for _, error, _ in found)
    return Found(statistics.median(seconds), error, max(sent) if sent else None)


def _rank(
    rank: int,
    ranks: int,
    way: str,
    tokens: int,
    heads: int,
    head_dim: int,
    rounds: int,
    folder: str,
    answers: Any,
) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{Path(folder) / 'meeting'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=120),
    )
    generator = torch.Generator().manual_seed(0)
    shape = (1, tokens, heads, head_dim)
    q, k, v, dout = (torch.randn(shape, generator=generator) for _ in range(4))
    sizes = split_evenly(tokens, ranks)
    here = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    traffic = Traffic()
    step = _peer(rank, ranks) if way == PEER else _ours(OURS[way], rank, ranks, sizes, traffic)
    mine = [x[:, here].clone().requires_grad_() for x in (q, k, v)]
    out = step(mine, dout[:, here])
    num_bytes = None if way == PEER else sum(n for _, n in traffic.by_name().values())
    times = []
    for _ in range(rounds):
        dist.barrier()
        begin = time.process_time()
        step(mine, dout[:, here])
        times.append(time.process_time() - begin)
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    exact = F.scaled_dot_product_attention(q, k, v)
    error = float((out.double() - exact.transpose(1, 2)[:, here]).abs().max())
    answers.put((times, error, num_bytes))
    dist.destroy_process_group()


Step = Callable[[list[Tensor], Tensor], Tensor]
"""Forward and backward of this rank's q, k, v `[1, S, H, D]`; returns the output."""


def _ours(comm: Comm, rank: int, ranks: int, sizes: tuple[int, ...], traffic: Traffic) -> Step:
    topology = Topology(rank=rank, world_size=ranks, ring=ranks)
    groups = Groups.make(topology, timeout_s=120.0)
    attention = ContextAttention.build(groups, traffic=traffic, layer="attention", comm=comm)
    layout = ShardedDense(sizes_q=sizes, sizes_k=sizes, part=rank)

    def step(mine: list[Tensor], dout: Tensor) -> Tensor:
        q, k, v = mine
        out = attention(q, k, v, layout)
        torch.autograd.grad(out, mine, dout)
        return out.detach()

    return step


def _peer(rank: int, ranks: int) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._context_parallel import _attention
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = init_device_mesh("cpu", (ranks,))
    # Its balanced order is for causal attention only.
    _attention._cp_options.enable_load_balance = False

    def step(mine: list[Tensor], dout: Tensor) -> Tensor:
        # Inside, attention takes its operands for parts; it wants some buffer to split as well.
        buffer = [torch.zeros(ranks)]
        with (
            context_parallel(mesh, buffers=buffer, buffer_seq_dims=[0]),
            sdpa_kernel(SDPBackend.MATH),
        ):
            q, k, v = (x.transpose(1, 2) for x in mine)
            out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
            torch.autograd.grad(out, mine, dout)
        return out.detach()

    return step
