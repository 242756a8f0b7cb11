"""Wiring tier: how sequences are split over ranks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError
from models.attention import Packed, local_attention
from models.pack import PackLayout
from parallel.layout import PackShare, ShardedPacked, split_evenly, split_lens
from parallel.ulysses import head_shares


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 9))
def test_splits_are_whole_and_even(lens, parts):
    split = split_lens(lens, parts)
    assert [sum(column) for column in zip(*split, strict=True)] == lens
    for column in zip(*split, strict=True):
        assert max(column) - min(column) <= 1
    totals = [sum(sizes) for sizes in split]
    assert max(totals) - min(totals) <= 1
    assert sorted(split_evenly(lens[0], parts)) == sorted(sizes[0] for sizes in split)


def test_the_remainder_goes_around():
    assert split_lens((5, 5, 1), 4) == ((2, 1, 0), (1, 2, 0), (1, 1, 1), (1, 1, 0))
    assert split_lens((2,), 4) == ((1,), (1,), (0,), (0,))


grids = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=5
)


@given(grids, st.integers(1, 7))
def test_shares_of_a_pack_are_the_pack(sizes, parts):
    n = len(sizes)
    whole = PackLayout.build(sizes, [3] * n, torch.arange(n, dtype=torch.float32))
    shares = [PackShare.of(whole, parts, part) for part in range(parts)]
    index = torch.cat([share.index for share in shares])
    assert sorted(index.tolist()) == list(range(whole.num_tokens))
    per_sample = torch.rand(n, 2)
    for share in shares:
        assert share.num_tokens == len(share.index)
        for name in ("segment", "position", "coordinates"):
            assert torch.equal(getattr(share, name), getattr(whole, name)[share.index]), name
        assert torch.equal(share.spread(per_sample), whole.spread(per_sample)[share.index])
        assert share.self_attention.parts_q == tuple(s.lens for s in shares)
        assert share.self_attention.lens_q == share.lens
        assert share.cross_attention == Packed(share.lens, whole.cross_attention.lens_k)
        assert share.index.tolist() == sorted(share.index.tolist())


def test_one_part_is_the_whole():
    whole = PackLayout.build([(2, 3, 2), (1, 1, 1)], [1, 0], torch.tensor([24.0, 0.0]))
    share = PackShare.of(whole, 1, 0)
    assert torch.equal(share.index, torch.arange(13))
    assert share.lens == whole.lens


def test_refused():
    parts = ((2, 1), (1, 2))
    with pytest.raises(ValueError, match="part 2 of 2 parts of q and 2 of k"):
        ShardedPacked((2, 1), (2, 1), parts_q=parts, parts_k=parts, part=2)
    with pytest.raises(ValueError, match="causal attention over ranks needs q and k split alike"):
        ShardedPacked.of(parts, ((1, 1), (1, 1)), 0, causal=True)
    x = torch.zeros(3, 1, 8)
    with pytest.raises(ValueError, match="one device got a ShardedPacked"):
        local_attention(x, x, x, ShardedPacked.of(parts, parts, 0))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 8))
def test_heads_are_shared_out(num_k, group, parts):
    num_q = num_k * group
    if num_q < parts:
        with pytest.raises(ConfigError, match=f"ulysses={parts} cannot split {num_q} heads"):
            head_shares(num_q, num_k, parts)
        return
    shares = head_shares(num_q, num_k, parts)
    assert [h for s in shares for h in range(s.q0, s.q1)] == list(range(num_q))
    sizes = [s.q1 - s.q0 for s in shares]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= (group if num_k >= parts else 1)
    for s in shares:
        assert {h // group for h in range(s.q0, s.q1)} == set(range(s.k0, s.k1))
    if num_k >= parts:
        assert sum(s.k1 - s.k0 for s in shares) == num_k, "no key head goes to two ranks"


@pytest.mark.parametrize("parts", [2, 4, 8, 32])
def test_the_work_of_a_pack_is_even_over_ranks(parts):
    """Tokens times the keys that they see, of packs of 74k tokens, images and videos mixed."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        sizes, left = [], 73728
        while left > 0:
            t = int(torch.randint(1, 33, (1,), generator=generator)) if len(sizes) % 3 else 1
            h, w = torch.randint(8, 49, (2,), generator=generator).tolist()
            sizes.append((t, h, w))
            left -= t * h * w
        whole = PackLayout.build(sizes, [1] * len(sizes), torch.zeros(len(sizes)))
        shares = [PackShare.of(whole, parts, part) for part in range(parts)]
        work = [sum(n * m for n, m in zip(share.lens, whole.lens, strict=True)) for share in shares]
        tokens = [share.num_tokens for share in shares]
        assert max(tokens) - min(tokens) <= 1
        assert max(work) * parts / sum(work) <= 1.001
