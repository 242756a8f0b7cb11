"""The order of an epoch: against a plain recomputation, and what it must be."""

import numpy as np
import pytest

from common import rng
from dataloading.order import FixedOrder, ShuffledOrder

SHARDS = [4, 7, 0, 3, 5, 1, 6]
START = np.cumsum([0, *SHARDS])
USABLE = np.ones(START[-1], dtype=bool)
USABLE[[0, 5, 6, 19]] = False


def order(seed: int = 3, shuffle_shards: int = 2) -> ShuffledOrder:
    return ShuffledOrder(USABLE, START, seed=seed, shuffle_shards=shuffle_shards)


def epoch_of(made: ShuffledOrder, epoch: int) -> list[int]:
    """The epoch, block after block."""
    clips: list[int] = []
    while len(clips) < len(made):
        block = made.block(epoch, len(clips))
        assert block.start == len(clips)
        clips += block.ordinals.tolist()
    return clips


@pytest.mark.parametrize("shuffle_shards", [1, 2, 3, 100])
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_order_is_that_of_a_plain_recomputation(epoch: int, shuffle_shards: int) -> None:
    clips_of, ordinal = [], 0
    for size in SHARDS:
        clips_of.append([c for c in range(ordinal, ordinal + size) if USABLE[c]])
        ordinal += size
    shards = rng.permutation(rng.key(3, "shards", step=epoch), len(SHARDS)).tolist()
    expected: list[int] = []
    for number, begin in enumerate(range(0, len(shards), shuffle_shards)):
        clips = [c for shard in shards[begin : begin + shuffle_shards] for c in clips_of[shard]]
        mixed = rng.permutation(rng.key(3, "clips", step=epoch, sample_id=str(number)), len(clips))
        expected += [clips[i] for i in mixed.tolist()]
    assert epoch_of(order(shuffle_shards=shuffle_shards), epoch) == expected


def test_each_usable_clip_comes_once_and_epochs_and_seeds_differ() -> None:
    epochs = [epoch_of(order(), 0), epoch_of(order(), 1), epoch_of(order(seed=4), 0)]
    for clips in epochs:
        assert sorted(clips) == np.flatnonzero(USABLE).tolist()
    assert len({tuple(clips) for clips in epochs}) == 3


def test_every_position_finds_its_block() -> None:
    made = order()
    whole = epoch_of(made, 2)
    for position in range(len(made)):
        block = made.block(2, position)
        assert block.start <= position < block.end
        assert block.ordinals.tolist() == whole[block.start : block.end]


def test_a_block_reads_few_shards() -> None:
    made = order()
    for position in range(len(made)):
        shards = np.searchsorted(START, made.block(0, position).ordinals, side="right")
        assert len(set(shards.tolist())) <= 2


def test_the_fixed_order_is_the_manifests() -> None:
    made = FixedOrder(USABLE)
    assert made.block(0, 3).ordinals.tolist() == np.flatnonzero(USABLE).tolist()
    assert len(made) == USABLE.sum()
