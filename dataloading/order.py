"""The order of clips in an epoch: a pure function of (seed, epoch), whoever reads it.

A block shuffle: shards are permuted, and clips are permuted inside blocks of consecutive (permuted)
shards. So at any time only a block's shards are read, and position p of an epoch costs one block
to find, not p steps.
"""

from dataclasses import dataclass

import numpy as np

from common import rng


@dataclass(frozen=True, kw_only=True)
class Block:
    """Clips at positions `start .. start + len(ordinals)` of an epoch."""

    epoch: int
    start: int
    ordinals: np.ndarray

    @property
    def end(self) -> int:
        return self.start + len(self.ordinals)


class ShuffledOrder:
    """The training order over the usable clips of a table: another one each epoch, without end."""

    endless = True

    def __init__(
        self, usable: np.ndarray, shard_start: np.ndarray, *, seed: int, shuffle_shards: int
    ) -> None:
        """
        Args:
            usable: `bool`, by ordinal: clips that take part.
            shard_start: `int64 [num_shards + 1]`, first ordinal of each shard, and the end.
        """
        self._usable = usable
        self._shard_start = shard_start
        self._seed = seed
        self._shuffle_shards = shuffle_shards
        counts = np.concatenate([[0], np.cumsum(usable)])
        self._num_usable = counts[shard_start[1:]] - counts[shard_start[:-1]]

    def __len__(self) -> int:
        """Clips in an epoch."""
        return int(self._num_usable.sum())

    def block(self, epoch: int, position: int) -> Block:
        """The block that holds `position` (0 .. len-1) of `epoch`."""
        shards = rng.permutation(
            rng.key(self._seed, "shards", step=epoch), len(self._num_usable)
        ).numpy()
        per_block = np.add.reduceat(
            self._num_usable[shards], np.arange(0, len(shards), self._shuffle_shards)
        )
        ends = np.cumsum(per_block)
        number = int(np.searchsorted(ends, position, side="right"))
        inside = shards[number * self._shuffle_shards : (number + 1) * self._shuffle_shards]
        clips = np.concatenate([self._clips(int(shard)) for shard in inside])
        key = rng.key(self._seed, "clips", step=epoch, sample_id=str(number))
        shuffled = clips[rng.permutation(key, len(clips)).numpy()]
        return Block(epoch=epoch, start=int(ends[number] - per_block[number]), ordinals=shuffled)

    def _clips(self, shard: int) -> np.ndarray:
        first, end = self._shard_start[shard], self._shard_start[shard + 1]
        return np.flatnonzero(self._usable[first:end]) + first


class FixedOrder:
    """The usable clips in the manifest's order, once: what is validated on."""

    endless = False

    def __init__(self, usable: np.ndarray) -> None:
        self._ordinals = np.flatnonzero(usable)

    def __len__(self) -> int:
        return len(self._ordinals)

    def block(self, epoch: int, position: int) -> Block:
        """The whole order, whatever the position."""
        return Block(epoch=epoch, start=0, ordinals=self._ordinals)
