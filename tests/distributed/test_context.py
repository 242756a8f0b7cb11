"""Gloo tier: attention over ranks against one process, outputs and gradients, and what it sends."""

import re
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from common.errors import ConfigError
from models.attention import Packed, local_attention
from parallel.collectives import Channel, CollectiveError, Pending
from parallel.context import ContextAttention
from parallel.kernels.base import wide
from parallel.kernels.eager import EagerKernel
from parallel.layout import Lens, ShardedPacked, split_lens
from parallel.traffic import Traffic
from parallel.ulysses import head_shares
from tests.distributed.cases import Case, draw, groups_of, rows_of, run_cases

NUM_CASES = {torch.float64: 250, torch.float32: 100, torch.bfloat16: 100}
BF16_ROUNDING = 2.0**-8
"""Of the largest value: of few numbers one process may hit each exactly, by luck."""


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("dtype", list(NUM_CASES), ids=str)
def test_over_ranks_is_as_in_one_process(worlds, world_size, dtype):
    cases = [draw(seed, world_size, dtype) for seed in range(NUM_CASES[dtype])]
    by_rank = worlds[world_size].run(run_cases, cases)
    all_ranks, all_alone = [], []
    for i, case in enumerate(cases):
        ranks = [max(per_rank) for per_rank in zip(*(r[i].ranks for r in by_rank), strict=True)]
        alone = by_rank[0][i].alone
        all_ranks.append(ranks)
        all_alone.append(alone)
        match dtype:
            case torch.float64:
                limits = [1e-13] * 4
            case torch.float32:
                limits = [5e-6] * 4
            case _:
                limits = [2 * max(error, BF16_ROUNDING) for error in alone]
        assert all(e <= n for e, n in zip(ranks, limits, strict=True)), (case, ranks, alone)
        for rank, results in enumerate(by_rank):
            assert results[i].traffic == expected_traffic(case, rank), (case, rank)
    ranks, alone = torch.tensor(all_ranks), torch.tensor(all_alone)
    print(f"{len(cases)} cases, seeds from 0; out, dq, dk, dv over ranks, and in one process")
    for statistic in (torch.amax, torch.mean):
        print([f"{e:.1e}" for e in statistic(ranks, 0)], [f"{e:.1e}" for e in statistic(alone, 0)])
        if dtype == torch.bfloat16:
            assert (statistic(ranks, 0) <= 2 * statistic(alone, 0)).all()


def expected_traffic(case: Case, rank: int) -> dict[str, tuple[int, int]]:
    """`(calls, bytes)` of forward and backward, from the sizes alone."""
    if case.keys == "whole":
        return {}
    size = torch.empty((), dtype=case.dtype).element_size()
    size_sum = torch.empty((), dtype=wide(case.dtype)).element_size()
    r, j = divmod(rank, case.ulysses)
    n = [sum(lens) for lens in case.parts_q()]
    m = [sum(lens) for lens in case.parts_k()]
    peers = [p for p in range(r * case.ulysses, (r + 1) * case.ulysses) if p != rank]
    expected = {}
    heads_k = case.num_k
    if case.ulysses > 1:
        shares = head_shares(case.num_q, case.num_k, case.ulysses)
        heads = [(s.q1 - s.q0, s.k1 - s.k0) for s in shares]
        own_q, own_k = heads[j]
        others = [heads[p % case.ulysses] for p in peers]
        qkv = sum(n[rank] * q + 2 * m[rank] * k for q, k in others)
        qkv_back = sum(n[p] * own_q + 2 * m[p] * own_k for p in peers)
        out = sum(n[p] * own_q for p in peers)
        out_back = sum(n[rank] * q for q, _ in others)
        for name, elements in (
            ("ulysses.qkv", qkv),
            ("ulysses.out", out),
            ("ulysses.qkv.backward", qkv_back),
            ("ulysses.out.backward", out_back),
        ):
            expected[name] = (1, elements * case.head_dim * size)
        group = case.num_q // case.num_k
        uneven = [h // group for h in range(shares[j].q0, shares[j].q1)]
        counts = {uneven.count(h) for h in uneven}
        heads_k = own_k if len(counts) == 1 else own_q
    if case.ring > 1:
        runs = [sum(m[i * case.ulysses : (i + 1) * case.ulysses]) for i in range(case.ring)]
        blocks = [2 * tokens * heads_k * case.head_dim for tokens in runs]
        hops = case.ring - 1
        if case.transfer == "p2p":
            sent = sum(blocks[(r - step) % case.ring] for step in range(hops)) * size
            expected["ring.kv"] = expected["ring.kv.backward"] = (hops, sent)
            expected["ring.dkv.backward"] = (case.ring, sum(blocks) * size_sum)
        else:
            expected["gather.kv"] = expected["gather.kv.backward"] = (1, hops * blocks[r] * size)
            expected["gather.dkv.backward"] = (1, (sum(blocks) - blocks[r]) * size_sum)
    return expected


@pytest.mark.parametrize(
    ("ulysses", "ring", "transfer"),
    [(1, 4, "p2p"), (1, 4, "all_gather"), (4, 1, "p2p"), (2, 2, "p2p"), (2, 2, "all_gather")],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_even_sizes_send_what_the_papers_say(world4, ulysses, ring, transfer, dtype):
    """In units of u, the bytes of a rank's hidden states; s is the width of summed gradients."""
    case = Case(
        seed=0,
        ulysses=ulysses,
        ring=ring,
        transfer=transfer,
        kernel="fitting",
        dtype=dtype,
        form="dense",
        lens_q=(16,),
        lens_k=(16,),
        causal=False,
        keys="sharded",
        num_q=4,
        num_k=4,
        head_dim=8,
    )
    element = torch.empty((), dtype=dtype).element_size()
    u, s = 4 * 4 * 8 * element, 4 / element
    kv = 2 * u * (ring - 1)
    a2a = u * (ulysses - 1) / ulysses
    expected = {
        "ulysses.qkv": (1, 3 * a2a),
        "ulysses.qkv.backward": (1, 3 * a2a),
        "ulysses.out": (1, a2a),
        "ulysses.out.backward": (1, a2a),
    }
    if ulysses == 1:
        expected = {}
    if ring > 1 and transfer == "p2p":
        expected["ring.kv"] = expected["ring.kv.backward"] = (ring - 1, kv)
        expected["ring.dkv.backward"] = (ring, 2 * u * ring * s)
    elif ring > 1:
        expected["gather.kv"] = expected["gather.kv.backward"] = (1, kv)
        expected["gather.dkv.backward"] = (1, kv * s)
    for errors in world4.run(run_cases, [case]):
        assert errors[0].traffic == expected


def test_the_draw_meets_what_is_hard():
    """Random cases prove nothing of what they never draw."""
    for world_size in (2, 4):
        cases = [draw(seed, world_size, torch.float64) for seed in range(150)]
        sharded = [c for c in cases if c.keys == "sharded"]
        for what, found in {
            "causal over a ring": [c for c in sharded if c.causal and c.ring > 1],
            "shorter than the ranks": [c for c in sharded if min(c.lens_q) < world_size],
            "empty sequence": [c for c in sharded if 0 in c.lens_q],
            "queries without keys": [
                c for c in sharded if (0 in c.lens_k) and c.lens_q != c.lens_k
            ],
            "uneven heads": [c for c in sharded if c.ulysses > 1 and c.num_q % c.ulysses],
            "shared key heads": [c for c in sharded if c.num_k < c.ulysses],
            "text": [c for c in cases if c.keys == "whole"],
            "uneven rows": [c for c in sharded if c.form == "dense" and c.lens_q[0] % world_size],
            "gather": [c for c in sharded if c.ring > 1 and c.transfer == "all_gather"],
            "flash": [c for c in sharded if c.ring > 1 and c.kernel == "flash"],
        }.items():
            assert len(found) >= 3, (world_size, what)


def attend_with_other_packs(what: str) -> str:
    """Rank 1 was given something else; what verification says of it."""
    groups = groups_of(1, dist.get_world_size())
    odd = dist.get_rank() == 1
    lens = (9, 4) if odd and what == "tokens" else (4, 9) if odd and what == "order" else (4, 8)
    if what == "order" and not odd:
        lens = (9, 4)
    parts = split_lens(lens, groups.topology.cp)
    layout = ShardedPacked.of(parts, parts, groups.topology.cp_rank)
    x = torch.zeros(sum(layout.lens_q), 3 if odd and what == "heads" else 2, 8)
    attention = ContextAttention.build(groups, traffic=Traffic(), layer="blocks.1", verify=True)
    try:
        attention(x, x, x, layout)
    except CollectiveError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nothing", ""),
        ("tokens", r"numbers of queries \[12, 13\], numbers of keys \[12, 13\], splits"),
        ("heads", r"query heads \[2, 3\], key heads \[2, 3\]; give all of them the same pack"),
        ("order", r"ranks \[0, 1\] hold different splits \(by checksum\)"),
    ],
)
def test_verification_tells_every_rank_what_differs(world2, what, message):
    for told in world2.run(attend_with_other_packs, what):
        assert bool(told) == bool(message)
        assert re.search(message, told), told


def attend_in_odd_memory(lens: Lens) -> float:
    """Queries whose features do not lie side by side, and an expanded gradient."""
    worst = 0.0
    for ulysses, ring in ((1, dist.get_world_size()), (dist.get_world_size(), 1)):
        groups = groups_of(ulysses, ring)
        part, parts = groups.topology.cp_rank, split_lens(lens, groups.topology.cp)
        generator = torch.Generator().manual_seed(0)
        whole = [torch.randn(8, 4, sum(lens), generator=generator).double() for _ in range(3)]
        rows = rows_of(lens, parts, part)
        results = []
        for attention, layout, taken in (
            (local_attention, Packed(lens, lens), torch.arange(sum(lens))),
            (
                ContextAttention.build(groups, traffic=Traffic(), layer=""),
                ShardedPacked.of(parts, parts, part),
                rows,
            ),
        ):
            leaves = [x[..., taken].requires_grad_() for x in whole]
            q, k, v = (x.permute(2, 1, 0) for x in leaves)
            total = attention(q, k, v, layout).sum()
            results.append([total.detach(), *torch.autograd.grad(total, leaves)])
        alone, here = results
        dist.all_reduce(here[0])
        worst = max(worst, float((here[0] - alone[0]).abs()))
        for got, want in zip(here[1:], alone[1:], strict=True):
            worst = max(worst, float((got - want[..., rows]).abs().max()))
    return worst


@pytest.mark.parametrize("lens", [(300,), (300, 5), (9,)])
def test_memory_of_any_order_will_do(worlds, lens):
    """In blocks that are one batch or several, for the flash kernel or too short for it."""
    for pool in worlds.values():
        assert max(pool.run(attend_in_odd_memory, lens)) <= 1e-12


class WatchedKernel(EagerKernel):
    def __init__(self, events: list[str]) -> None:
        self.events = events

    def forward(self, q, k, v, causal):
        self.events.append("compute")
        return super().forward(q, k, v, causal)

    def backward(self, dout, q, k, v, out, lse, causal):
        self.events.append("compute.backward")
        return super().backward(dout, q, k, v, out, lse, causal)


@dataclass(frozen=True)
class WatchedChannel(Channel):
    events: list[str] = field(default_factory=list)

    def pass_on(
        self, x: torch.Tensor, num_received: int, name: str
    ) -> tuple[torch.Tensor, Pending]:
        self.events.append(f"post {name}")
        buffer, wait = super().pass_on(x, num_received, name)

        def watched() -> None:
            self.events.append(f"wait {name}")
            wait()

        return buffer, watched


def watch_a_ring(recompute: bool) -> tuple[float, list[str]]:
    """Largest error of the gradients, and what happened in which order."""
    groups = groups_of(1, dist.get_world_size())
    assert groups.ring is not None
    part, parts = groups.topology.cp_rank, split_lens((11,), groups.topology.cp)
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(11, 2, 8, generator=generator).double() for _ in range(3)]
    events: list[str] = []
    attention = ContextAttention(
        ring=WatchedChannel(groups.ring, events=events), kernel=WatchedKernel(events)
    )
    layout = ShardedPacked.of(parts, parts, part)
    rows = rows_of((11,), parts, part)
    here = [x[rows].requires_grad_() for x in whole]
    if recompute:
        out = checkpoint(attention, *here, layout, use_reentrant=False)
        assert isinstance(out, torch.Tensor)
    else:
        out = attention(here[0], here[1], here[2], layout)
    grads = torch.autograd.grad(out.square().sum(), here)
    alone = [x.clone().requires_grad_() for x in whole]
    exact = local_attention(alone[0], alone[1], alone[2], Packed((11,), (11,)))
    wanted = torch.autograd.grad(exact.square().sum(), alone)
    errors = [float((a - b[rows]).abs().max()) for a, b in zip(grads, wanted, strict=True)]
    return max(errors), events


@pytest.mark.parametrize("recompute", [False, True])
def test_blocks_travel_while_others_are_computed(worlds, recompute):
    for size, pool in worlds.items():
        hop = ["post ring.kv", "compute", "wait ring.kv"]
        forward = hop * (size - 1) + ["compute"]
        backward: list[str] = []
        for step in range(size):
            last = step == size - 1
            backward += [] if last else ["post ring.kv.backward"]
            backward += ["compute.backward"]
            # The gradients of a block arrive while this rank computes its own share of them.
            backward += ["wait ring.dkv.backward"] if step else []
            backward += ["post ring.dkv.backward"]
            backward += [] if last else ["wait ring.kv.backward"]
        backward += ["wait ring.dkv.backward"]
        for worst, events in pool.run(watch_a_ring, recompute):
            assert worst <= 1e-13
            assert events == forward * (1 + recompute) + backward


def refusals() -> list[str]:
    groups = groups_of(dist.get_world_size(), 1)
    attention = ContextAttention.build(groups, traffic=Traffic(), layer="")
    parts = split_lens((8,), 2)
    mine = groups.topology.cp_rank
    told = []
    for layout, tokens, heads in (
        (ShardedPacked.of(parts, parts, 1 - mine), 4, 2),
        (ShardedPacked.of(((8,),), ((8,),), 0), 8, 2),
        (ShardedPacked.of(parts, parts, mine), 5, 2),
        (ShardedPacked.of(parts, parts, mine), 4, 1),
    ):
        x = torch.zeros(tokens, heads, 8)
        try:
            attention(x, x, x, layout)
        except (ValueError, ConfigError) as error:
            told.append(str(error))
    return told


def test_what_does_not_fit_is_refused_before_anything_is_sent(world2):
    for rank, told in enumerate(world2.run(refusals)):
        assert told == [
            f"the layout is of part {1 - rank} of 2, this rank holds part {rank} of 2",
            f"the layout is of part 0 of 1, this rank holds part {rank} of 2",
            f"part {rank} of the layout holds 4 q and 4 k tokens, the tensors 5 and 5",
            "ulysses=2 cannot split 1 heads: set ulysses=1 or smaller, and ring larger in turn",
        ]


def test_one_rank_is_the_local_form_to_the_bit():
    x = torch.randn(12, 2, 8)
    layout = ShardedPacked.of(((7, 5),), ((7, 5),), 0)
    assert torch.equal(
        ContextAttention()(x, x, x, layout), local_attention(x, x, x, Packed((7, 5), (7, 5)))
    )
