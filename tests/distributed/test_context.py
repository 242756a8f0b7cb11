"""Gloo tier: attention over ranks against one process, outputs and gradients, and what it sends."""

import pytest
import torch

from parallel.kernels import wide
from parallel.ulysses import head_shares
from tests.distributed.cases import Case, draw, run_cases

NUM_CASES = {torch.float64: 150, torch.float32: 60, torch.bfloat16: 60}
BF16_ROUNDING = 2.0**-8


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("dtype", list(NUM_CASES), ids=str)
def test_over_ranks_is_as_in_one_process(worlds, world_size, dtype):
    cases = [draw(seed, world_size, dtype) for seed in range(NUM_CASES[dtype])]
    by_rank = worlds[world_size].run(run_cases, cases)
    worst = {"ranks": 0.0, "alone": 0.0}
    sums = {"ranks": 0.0, "alone": 0.0}
    for i, case in enumerate(cases):
        ranks = [max(per_rank) for per_rank in zip(*(r[i].ranks for r in by_rank), strict=True)]
        alone = by_rank[0][i].alone
        for name, errors in (("ranks", ranks), ("alone", alone)):
            worst[name] = max(worst[name], *errors)
            sums[name] += sum(errors)
        match dtype:
            case torch.float64:
                limits = [1e-13] * 4
            case torch.float32:
                limits = [5e-6] * 4
            case _:
                # Its own error is one rounding of the result at least, if it had no luck.
                limits = [2 * max(error, BF16_ROUNDING) for error in alone]
        assert all(e <= n for e, n in zip(ranks, limits, strict=True)), (case, ranks, alone)
        for rank, results in enumerate(by_rank):
            assert results[i].traffic == expected_traffic(case, rank), (case, rank)
    print(f"{len(cases)} cases, seeds 0 to {len(cases) - 1}: {worst}")
    if dtype == torch.bfloat16:
        assert sums["ranks"] <= 2 * sums["alone"], sums


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
