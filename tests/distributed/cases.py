"""Random cases of context-parallel attention, and what each rank does with one."""

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from models.attention import Dense, Packed, local_attention
from parallel.collectives import Channel
from parallel.context import ContextAttention, Transfer
from parallel.groups import Groups
from parallel.kernels.base import Kernel, wide
from parallel.kernels.cpu import CpuFlashKernel
from parallel.kernels.eager import EagerKernel
from parallel.layout import Lens, ShardedDense, ShardedPacked, split_evenly, split_lens
from parallel.topology import Topology
from parallel.traffic import Traffic

KERNELS: dict[str, Kernel | None] = {
    "fitting": None,
    "eager": EagerKernel(),
    "flash": CpuFlashKernel(),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One attention, spread over ring x ulysses ranks."""

    seed: int
    ulysses: int
    ring: int
    transfer: Transfer
    kernel: str
    dtype: torch.dtype
    form: Literal["packed", "dense"]
    lens_q: Lens
    lens_k: Lens
    causal: bool
    keys: Literal["sharded", "whole"]
    """Keys that are whole on every rank are those of replicated text."""
    num_q: int
    num_k: int
    head_dim: int

    @property
    def world_size(self) -> int:
        return self.ulysses * self.ring

    def parts_q(self) -> tuple[Lens, ...]:
        return self._parts(self.lens_q)

    def parts_k(self) -> tuple[Lens, ...]:
        return self._parts(self.lens_k)

    def _parts(self, lens: Lens) -> tuple[Lens, ...]:
        if self.form == "packed":
            return split_lens(lens, self.world_size)
        return tuple((n,) * len(lens) for n in split_evenly(lens[0], self.world_size))


def draw(seed: int, world_size: int, dtype: torch.dtype) -> Case:
    """The case of a seed: every choice is drawn, so that rare pairs of choices meet."""
    rng = random.Random(f"{seed}-{world_size}-{dtype}")
    ulysses = rng.choice([n for n in (1, 2, 4) if n <= world_size])
    num_k = rng.choice([1, 2, 3, 4, 5])
    group = rng.choice([g for g in (1, 2, 3, 4) if num_k * g >= ulysses])
    form: Literal["packed", "dense"] = "packed" if rng.random() < 0.65 else "dense"
    kind = rng.choice(["self", "self", "causal", "cross", "text"])
    longest = rng.choice([3, 9, 20, 90])
    if form == "packed":
        lens_q = tuple(rng.randint(0, longest) for _ in range(rng.randint(1, 6)))
        lens_k = tuple(rng.randint(0, longest) for _ in lens_q)
    else:
        rows = rng.randint(1, 3)
        lens_q = (rng.randint(1, longest),) * rows
        lens_k = (rng.randint(1, longest),) * rows
    if kind in ("self", "causal"):
        lens_k = lens_q
    return Case(
        seed=seed,
        ulysses=ulysses,
        ring=world_size // ulysses,
        transfer=rng.choice(["p2p", "p2p", "all_gather"]),
        kernel=rng.choice(list(KERNELS)),
        dtype=dtype,
        form=form,
        lens_q=lens_q,
        lens_k=lens_k,
        causal=kind == "causal",
        keys="whole" if kind == "text" else "sharded",
        num_q=num_k * group,
        num_k=num_k,
        head_dim=rng.choice([4, 8, 16]),
    )


@lru_cache(maxsize=16)
def groups_of(ulysses: int, ring: int) -> Groups:
    """Made once per process: a worker meets the same sizes again and again."""
    world = dist.get_world_size()
    return Groups.make(
        Topology(rank=dist.get_rank(), world_size=world, ulysses=ulysses, ring=ring),
        timeout_s=60.0,
    )


@dataclass(frozen=True)
class Errors:
    """Of the output, and of the gradients of q, k and v: the largest difference from fp64 in one
    process, over the largest value or 1 where that is smaller."""

    ranks: tuple[float, ...]
    """Of this rank's part."""
    alone: tuple[float, ...]
    """Of the whole in the type of the case, in one process."""
    traffic: dict[str, tuple[int, int]]


def run_cases(cases: list[Case]) -> list[Errors]:
    return [_run(case) for case in cases]


def _run(case: Case) -> Errors:
    generator = torch.Generator().manual_seed(case.seed)

    def normal(tokens: int, heads: int) -> Tensor:
        x = torch.randn(tokens, heads, case.head_dim, generator=generator, dtype=torch.float64)
        # Rounded once, so that every type starts from the same numbers.
        return x.to(case.dtype)

    q = normal(sum(case.lens_q), case.num_q)
    k, v = (normal(sum(case.lens_k), case.num_k) for _ in range(2))
    weight = normal(sum(case.lens_q), case.num_q)
    exact = _attend_alone(case, *(x.double() for x in (q, k, v, weight)))
    alone = _attend_alone(case, q, k, v, weight)

    groups = groups_of(case.ulysses, case.ring)
    part = groups.topology.cp_rank
    here_q = rows_of(case.lens_q, case.parts_q(), part)
    here_k = rows_of(case.lens_k, case.parts_k(), part)
    if case.keys == "whole":
        here_k = torch.arange(sum(case.lens_k))
    traffic = Traffic()
    channels = [g and Channel(g, traffic, "layer") for g in (groups.ulysses, groups.ring)]
    attention = ContextAttention(
        ulysses=channels[0],
        ring=channels[1],
        transfer=case.transfer,
        kernel=KERNELS[case.kernel],
    )
    mine = [x.detach().requires_grad_() for x in (q[here_q], k[here_k], v[here_k])]
    if case.form == "dense":
        rows = len(case.lens_q)
        shaped = [x.view(rows, -1, *x.shape[1:]) for x in mine]
        sizes_q, sizes_k = ([lens[0] for lens in p] for p in (case.parts_q(), case.parts_k()))
        layout = ShardedDense(
            case.causal, sizes_q=tuple(sizes_q), sizes_k=tuple(sizes_k), part=part
        )
        layout = Dense(case.causal) if case.keys == "whole" else layout
        out = attention(*_three(shaped), layout).flatten(0, 1)
    else:
        layout = (
            Packed(case.parts_q()[part], case.lens_k)
            if case.keys == "whole"
            else ShardedPacked.of(case.parts_q(), case.parts_k(), part, causal=case.causal)
        )
        out = attention(*_three(mine), layout)
    grads = list(torch.autograd.grad((out * weight[here_q]).sum(), mine))
    if case.keys == "whole":
        # As the gradients of replicated parameters: each rank has the share of its queries.
        # Contiguous, since gloo writes past the end of an expanded tensor.
        grads = [grads[0], *(grad.to(wide(case.dtype)).contiguous() for grad in grads[1:])]
        for grad in grads[1:]:
            dist.all_reduce(grad)
    wanted = [exact[0][here_q], exact[1][here_q], exact[2][here_k], exact[3][here_k]]
    scale = [max(1.0, _largest(x, torch.zeros_like(x))) for x in exact]
    return Errors(
        tuple(
            _largest(a, b) / s
            for a, b, s in zip([out.detach(), *grads], wanted, scale, strict=True)
        ),
        tuple(_largest(a, b) / s for a, b, s in zip(alone, exact, scale, strict=True)),
        traffic.by_name(),
    )


def _attend_alone(case: Case, q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = local_attention(*_three(leaves), Packed(case.lens_q, case.lens_k, case.causal))
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)]


def rows_of(lens: Lens, parts: tuple[Lens, ...], part: int) -> Tensor:
    """Rows of the whole that lie in a part, worked out one sequence at a time."""
    rows, start = [torch.arange(0)], 0
    for i, n in enumerate(lens):
        begin = start + sum(parts[p][i] for p in range(part))
        rows.append(torch.arange(begin, begin + parts[part][i]))
        start += n
    return torch.cat(rows)


def _three(x: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = x
    return q, k, v


def _largest(a: Tensor, b: Tensor) -> float:
    return float(F.pad((a.double() - b.double()).abs().flatten(), (0, 1)).max())
