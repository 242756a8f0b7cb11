"""Wiring tier: how packs are held for spatial and temporal attention, and the fewest exchanges."""

from collections.abc import Sequence
from itertools import pairwise, product
from typing import cast

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from models.objectives.loss import token_noise
from models.pack import PackLayout
from models.stdit import STDiTConfig
from parallel.collectives import Channel
from parallel.layout import PackShare
from parallel.spatiotemporal import (
    LOCAL_IN,
    GridShare,
    Halves,
    Held,
    plan,
    split_units,
)

EVEN: dict[Held, float] = {"frames": 1.0, "places": 1.0}
NAMES = st.sampled_from(["spatial", "temporal", "full", "cross", "mlp"])


class OneOf(Channel):
    """A channel that knows its place and sends nothing."""

    def __init__(self, size: int, rank: int) -> None:
        self.__dict__.update(group=cast(dist.ProcessGroup, None), size=size, rank=rank)


def halves_of(whole: PackLayout, parts: int) -> list[Halves]:
    return [Halves(whole, OneOf(parts, rank)) for rank in range(parts)]


def num_exchanges(holdings: Sequence[Held]) -> int:
    return sum(a != b for a, b in pairwise(holdings))


@pytest.mark.parametrize("num_layers", [1, 2, 5, 28])
@pytest.mark.parametrize(
    "sublayers",
    [
        ["spatial", "full", "cross", "temporal", "mlp"],
        ["full", "spatial", "temporal", "cross", "mlp"],
        ["temporal", "spatial"],
    ],
)
def test_as_many_exchanges_as_blocks_or_twice_as_many_less_one(num_layers, sublayers):
    for zigzag, wanted in ((True, num_layers), (False, 2 * num_layers - 1)):
        config = STDiTConfig(num_layers=num_layers, sublayers=sublayers, zigzag=zigzag)
        assert num_exchanges(plan(config.of_network(), EVEN)) == wanted


@given(st.lists(NAMES, min_size=1, max_size=9), st.sampled_from([(1.0, 1.0), (1.2, 1.1), (1, 2)]))
def test_no_schedule_has_fewer_exchanges(sublayers, imbalance):
    """Against all schedules there are, each judged by what its layers need."""
    of: dict[Held, float] = dict(zip(("frames", "places"), imbalance, strict=True))
    chosen = plan(sublayers, of)
    if imbalance == (1, 2):
        assert set(chosen) == {"frames"}
        return
    possible: list[tuple[Held, ...]] = [
        holdings
        for holdings in product(("frames", "places"), repeat=len(sublayers))
        if all(LOCAL_IN.get(n, h) == h for n, h in zip(sublayers, holdings, strict=True))
    ]
    fewest = min(num_exchanges(holdings) for holdings in possible)
    assert tuple(chosen) in possible
    assert num_exchanges(chosen) == fewest
    # Among those, the most layers run where the pack is split more evenly.
    if of["places"] < of["frames"]:
        most = max(h.count("places") for h in possible if num_exchanges(h) == fewest)
        assert chosen.count("places") == most


grids = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=5
)


@given(grids, st.integers(1, 5))
def test_both_ways_hold_the_pack(sizes, parts):
    n = len(sizes)
    whole = PackLayout.build(sizes, [3] * n, torch.arange(n, dtype=torch.float32))
    for held in ("frames", "places"):
        shares = [halves[held] for halves in halves_of(whole, parts)]
        index = torch.cat([share.index for share in shares])
        assert sorted(index.tolist()) == list(range(whole.num_tokens))
        for share in shares:
            assert share.num_tokens == len(share.index)
            for name in ("segment", "position", "coordinates"):
                assert torch.equal(getattr(share, name), getattr(whole, name)[share.index]), name
            check_rows(share)


@given(grids, st.integers(1, 4))
def test_noise_and_loss_follow_the_tokens(sizes, parts):
    """Whoever holds a token draws its noise and weighs its error as one process does."""
    n = len(sizes)
    whole = PackLayout.build(sizes, [3] * n, torch.full((n,), 24.0))
    keys = torch.arange(2 * n).view(n, 2)
    noise, error, weight = token_noise(keys, whole, 4), torch.rand(whole.num_tokens), torch.rand(n)
    total = (whole.spread(weight) * error).sum()
    for kind in ("frames", "places", "even"):
        parted = torch.zeros(())
        for halves in halves_of(whole, parts):
            share = (
                PackShare.of(whole, parts, halves.channel.rank)
                if kind == "even"
                else halves.frames
                if kind == "frames"
                else halves.places
            )
            assert torch.equal(token_noise(keys, share, 4), noise[share.index])
            parted += (share.spread(weight) * error[share.index]).sum()
        torch.testing.assert_close(parted, total)


def check_rows(share: GridShare) -> None:
    """Each row holds the tokens of one frame or place, all ranks' rows meet in the same order."""
    tokens = torch.cat([share.segment[:, None], share.coordinates], 1)
    for rows, kept in ((share.spatial, [0, 1]), (share.temporal, [0, 2, 3])):
        inside = rows.arrange(tokens)
        assert torch.equal(rows.restore(inside), tokens)
        pieces = inside[:, kept].split(rows.attention.lens_q)
        named = [tuple(piece[0].tolist()) for piece in pieces if len(piece)]
        assert all((piece == piece[:1]).all() for piece in pieces)
        assert named == sorted(set(named)), "each row once, in the order of the pack"


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=8),
    st.integers(1, 9),
)
def test_units_are_split_whole_and_even(samples, parts):
    counts, sizes = zip(*samples, strict=True)
    split = split_units(counts, sizes, parts)
    assert [sum(column) for column in zip(*split, strict=True)] == list(counts)
    tokens = [sum(n * size for n, size in zip(of, sizes, strict=True)) for of in split]
    for column in zip(*split, strict=True):
        assert max(column) - min(column) <= 1
    # What is left over goes where least is: two ranks differ by one unit at most.
    assert max(tokens) - min(tokens) <= max(sizes)


def test_a_pack_in_even_parts_is_refused():
    share = PackShare.of(PackLayout.build([(2, 2, 2)], [1], torch.zeros(1)), 2, 0)
    assert share.schedule(["full", "mlp"]) == [share, share]
    with pytest.raises(ValueError, match="share it out by parallel.spatiotemporal"):
        share.schedule(["full", "spatial"])


def test_a_layout_of_another_pack_is_refused():
    whole = PackLayout.build([(2, 2, 2)], [1], torch.zeros(1))
    x = torch.zeros(8, 3)
    one, other = halves_of(whole, 1) + halves_of(whole, 1)
    assert one.frames.switch(x, one.frames, "a") is x
    with pytest.raises(ValueError, match="a: tokens cannot be switched to the layout of another"):
        one.frames.switch(x, other.places, "a")
    with pytest.raises(ValueError, match="a: a layout of one device has no other"):
        whole.switch(x, one.frames, "a")
