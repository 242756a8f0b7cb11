"""Gloo tier: attention whose keys and values are rounded to 8 bits before they are sent."""

import pytest
import torch
import torch.distributed as dist

from models.attention import Packed, local_attention
from parallel.context import Comm, ContextAttention
from parallel.kernels.base import wide
from parallel.kernels.fp8 import Rounded, num_bytes
from parallel.layout import ShardedPacked, split_lens
from parallel.traffic import Traffic
from tests.distributed.cases import groups_of, rows_of

LENS = (40, 3, 1, 77)
HEADS_Q, HEADS_K, HEAD_DIM = 4, 2, 16


def attend(comm: Comm) -> tuple[float, float, list[float], dict[str, tuple[int, int]]]:
    """Over ranks: the largest difference from one process that rounds the same blocks; the error
    from exact attention; errors of gradients; and what was sent."""
    size = dist.get_world_size()
    groups = groups_of(1, size)
    part, parts = groups.topology.cp_rank, split_lens(LENS, size)
    generator = torch.Generator().manual_seed(0)
    n = sum(LENS)
    q, dout = (torch.randn(n, HEADS_Q, HEAD_DIM, generator=generator) for _ in range(2))
    k, v = (torch.randn(n, HEADS_K, HEAD_DIM, generator=generator) for _ in range(2))
    rows = [rows_of(LENS, parts, p) for p in range(size)]
    # Each rank's part has its own scales; gathered again, they are ordinary numbers.
    rounded = [torch.empty_like(x) for x in (q, k, v)]
    for whole, x in zip(rounded, (q, k, v), strict=True):
        for taken in rows:
            whole[taken] = Rounded.of(x[taken], HEADS_K).wide(torch.float32)
    alone = local_attention(rounded[0], rounded[1], rounded[2], Packed(LENS, LENS))
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    exact = local_attention(leaves[0], leaves[1], leaves[2], Packed(LENS, LENS))
    wanted = torch.autograd.grad((exact * dout).sum(), leaves)

    traffic, mine = Traffic(), rows[part]
    attention = ContextAttention.build(groups, traffic=traffic, layer="a", comm=comm, fp8=True)
    layout = ShardedPacked.of(parts, parts, part)
    here = [x[mine].requires_grad_() for x in (q, k, v)]
    out = attention(here[0], here[1], here[2], layout)
    grads = torch.autograd.grad((out * dout[mine]).sum(), here)
    same = float((out.detach() - alone[mine]).abs().max())
    error = float((out.detach().double() - exact[mine]).norm() / exact[mine].norm())
    errors = [
        float((a.double() - b[mine]).norm() / b[mine].norm())
        for a, b in zip(grads, wanted, strict=True)
    ]
    return same, error, errors, traffic.by_name()


@pytest.mark.parametrize("comm", ["p2p", "all_gather"])
def test_rounded_by_its_owner_and_sent_in_bytes(worlds, comm: Comm):
    for size, pool in worlds.items():
        tokens = [sum(lens) for lens in split_lens(LENS, size)]
        for rank, (same, error, errors, sent) in enumerate(pool.run(attend, comm)):
            assert same <= 1e-5
            assert 0.005 < error < 0.1
            assert all(e < 0.2 for e in errors)
            name = "ring.kv" if comm == "p2p" else "gather.kv"
            blocks = [num_bytes(n, HEADS_K, HEAD_DIM) for n in tokens]
            passed = [blocks[(rank - step) % size] for step in range(size - 1)]
            forward = passed if comm == "p2p" else [blocks[rank]] * (size - 1)
            assert sent[name] == (size - 1 if comm == "p2p" else 1, sum(forward))
            # The backward sends what it always does.
            element = torch.empty((), dtype=wide(torch.float32)).element_size()
            plain = [2 * n * HEADS_K * HEAD_DIM * element for n in tokens]
            passed = [plain[(rank - step) % size] for step in range(size - 1)]
            backward = passed if comm == "p2p" else [plain[rank]] * (size - 1)
            assert sent[f"{name}.backward"][1] == sum(backward)


def exchanged() -> float:
    """Heads are exchanged as they are; rounding follows, with one scale for the whole."""
    size = dist.get_world_size()
    groups = groups_of(size, 1)
    part, parts = groups.topology.cp_rank, split_lens(LENS, size)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(sum(LENS), 4, HEAD_DIM, generator=generator) for _ in range(3))
    rows = rows_of(LENS, parts, part)
    wide_again = [Rounded.of(x, 4).wide(torch.float32) for x in (q, k, v)]
    alone = local_attention(wide_again[0], wide_again[1], wide_again[2], Packed(LENS, LENS))
    attention = ContextAttention.build(groups, traffic=Traffic(), layer="a", comm="a2a", fp8=True)
    out = attention(q[rows], k[rows], v[rows], ShardedPacked.of(parts, parts, part))
    return float((out - alone[rows]).abs().max())


def test_after_heads_are_exchanged_whole_sequences_are_rounded(worlds):
    for pool in worlds.values():
        assert max(pool.run(exchanged)) <= 1e-5
