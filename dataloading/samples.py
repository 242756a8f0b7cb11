"""Whole samples of any folder of WebDataset tars, in one exact order, for everyone's training loop.

    loader = SampleLoader("folder", batch_size=32, shuffle=True)
    for batch in loader:
        for sample in batch:
            sample["__key__"], sample["mp4"], sample["json"]

Nothing is decoded: each part is the bytes of its file. Parts are never unpickled.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from common import rng
from common.errors import ConfigError, DataError
from common.ranges import Ranges
from common.store_path import Place, place_of
from dataloading.order import FixedOrder, ShuffledOrder
from dataloading.parts import PartTable, SamplePlace
from dataloading.threads import ReadPool, StorageWatch

STATE_VERSION = 1
_PLANNED = 4096
_AT_ONCE = 32
"""Samples that a thread reads in one go where they are delivered one by one."""
_STATE_KEYS = ("version", "identity", "epoch", "batch", "skipped")
Sample = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SampleBatch:
    """Samples as dictionaries: `__key__`, and the bytes of each part by its extension."""

    samples: list[Sample]
    state: dict[str, Any]
    """The loader's state once this batch was taken."""

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)


class SampleLoader(IterableDataset[Any]):
    """Iterating gives the rest of an epoch; iterating anew gives the next one, in another order.

    The order of all batches is a function of (seed, epoch) and the folder. Batch k goes to rank
    k % num_ranks; surplus batches at the end of an epoch are left out, so that all ranks get
    equally many. Under a torch `DataLoader` (`batch_size=None`), workers share a rank's batches and
    the order stays. `state_dict` speaks of what was delivered, and `load_state_dict` takes it with
    any numbers of ranks and workers; under workers take `batch.state`.

    With `batch_size=None` it gives samples, not batches, which is the fastest in one process, as
    what is read is then still near the processor when it is used.

    A sample that cannot be read whole is left out of its batch and named in `skipped`; more than
    `max_bad_samples` of them end the run with a list.

    Args:
        path: any folder of tars, or its URL in an object store; `vfm data index` makes opening
            fast.
        batch_size: samples in a batch; the last of an epoch may have fewer. None: no batches.
        shuffle: takes samples in random order inside blocks of `shuffle_shards` shards, which are
            in random order themselves; without it, in the order of the tars.
        parts: extensions to read; all where none are given.
        num_threads: that read ahead, two batches each, or 64 samples where there are none; 0 reads
            when asked. Workers have none.
        remote_cache_bytes: memory for parts of shards that lie in an object store.
        storage_timeout_s: where threads read, a file that takes longer ends the run with its name.
    """

    def __init__(
        self,
        path: str | Place,
        batch_size: int | None = 32,
        *,
        shuffle: bool = True,
        shuffle_shards: int = 8,
        seed: int = 0,
        parts: list[str] | None = None,
        num_threads: int = 0,
        rank: int = 0,
        num_ranks: int = 1,
        max_bad_samples: int = 100,
        storage_timeout_s: float = 50.0,
        remote_cache_bytes: int = 0,
    ) -> None:
        if (batch_size is not None and batch_size < 1) or shuffle_shards < 1 or num_threads < 0:
            raise ConfigError(
                f"{batch_size=} {shuffle_shards=} {num_threads=}: at least 1, 1 and 0 are needed"
            )
        if not 0 <= rank < num_ranks:
            raise ConfigError(f"rank is {rank}, must be in 0 .. num_ranks-1, {num_ranks - 1}")
        rng.check_seed(seed)
        self.path = place_of(path) if isinstance(path, str) else path
        self.batch_size = batch_size
        self.rank = rank
        self.num_ranks = num_ranks
        self.num_threads = num_threads
        self.max_bad_samples = max_bad_samples
        self.storage_timeout_s = storage_timeout_s
        self.skipped: dict[str, str] = {}
        self._settings = {"seed": seed, "shuffle": shuffle, "shuffle_shards": shuffle_shards}
        self._table = table = PartTable.open(self.path)
        wanted = [n for n in table.names if parts is None or n in parts]
        if not wanted or not len(table):
            raise DataError(f"{path} has no samples with the parts {parts}: it has {table.names}")
        self._wanted = None if parts is None else frozenset(wanted)
        every = np.ones(len(table), dtype=bool)
        self._order = (
            ShuffledOrder(every, table.shard_start, seed=seed, shuffle_shards=shuffle_shards)
            if shuffle
            else FixedOrder(every)
        )
        self._epoch = self._next = 0
        self._begun = False
        self._ranges = Ranges(cache_bytes=remote_cache_bytes)
        self._plan: _Plan | None = None
        self._fingerprint = table.fingerprint()

    def __len__(self) -> int:
        """Batches of an epoch on this rank, or samples where there are no batches."""
        return -(-len(self._table) // (self.batch_size or 1)) // self.num_ranks

    def __iter__(self) -> Iterator[Any]:
        """`SampleBatch`es, or samples; `state_dict` follows what the newest iterator delivers."""
        if self._begun:
            self._epoch, self._next = self._epoch + 1, 0
        self._begun = True
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        turns = range(self._next // self.num_ranks + worker, len(self), num_workers)
        num_threads = self.num_threads if info is None else 0
        return (
            self._samples(turns, num_threads)
            if self.batch_size is None
            else self._batches(turns, num_threads)
        )

    def _batches(self, turns: range, num_threads: int) -> Iterator[SampleBatch]:
        size, end = self.batch_size, len(self._table)
        assert size is not None
        firsts = [(turn * self.num_ranks + self.rank) * size for turn in turns]
        places = [range(first, min(first + size, end)) for first in firsts]
        for turn, got in zip(turns, self._read(places, num_threads), strict=True):
            for item in got:
                if isinstance(item, _Bad):
                    self._skip(item)
            self._next = (turn + 1) * self.num_ranks
            samples = [item for item in got if not isinstance(item, _Bad)]
            yield SampleBatch(samples=samples, state=self.state_dict())

    def _samples(self, turns: range, num_threads: int) -> Iterator[Sample]:
        if num_threads:
            groups = [turns[i : i + _AT_ONCE] for i in range(0, len(turns), _AT_ONCE)]
            places = [
                range(
                    g[0] * self.num_ranks + self.rank,
                    g[-1] * self.num_ranks + self.rank + 1,
                    self.num_ranks,
                )
                for g in groups
            ]
            found = chain.from_iterable(self._read(places, num_threads))
        else:
            epoch = self._epoch
            found = (
                self._sample(self._place(epoch, t * self.num_ranks + self.rank)) for t in turns
            )
        for turn, item in zip(turns, found, strict=True):
            self._next = (turn + 1) * self.num_ranks
            if isinstance(item, _Bad):
                self._skip(item)
            else:
                yield item

    def _read(self, groups: list[range], num_threads: int) -> Iterator[list["Sample | _Bad"]]:
        """Groups of positions of this epoch, read when asked for or ahead."""
        epoch = self._epoch
        if not num_threads:
            for positions in groups:
                yield [self._sample(self._place(epoch, position)) for position in positions]
            return
        watch = StorageWatch(self.storage_timeout_s)

        def read(positions: range) -> list[Sample | _Bad]:
            found = []
            for position in positions:
                place = self._place(epoch, position)
                with watch.reading(self._table.shards[place[1]]):
                    found.append(self._sample(place))
            return found

        pool = ReadPool(num_threads, "sample-read")
        try:
            ahead: deque[Future[list[Sample | _Bad]]] = deque()
            for positions in groups:
                ahead.append(pool.submit(read, positions))
                if len(ahead) > 2 * num_threads:
                    yield watch.wait(ahead.popleft())
            while ahead:
                yield watch.wait(ahead.popleft())
        finally:
            pool.shutdown(wait=not watch.stalled, cancel_futures=True)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; the same on all ranks that took equally many batches, up to `skipped`."""
        return {
            "version": STATE_VERSION,
            "identity": self._identity(),
            "epoch": self._epoch,
            "batch": self._next,
            "skipped": dict(self.skipped),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises `DataError` with the reason where the state belongs to other batches."""
        missing = [key for key in _STATE_KEYS if key not in state]
        if missing or state["version"] != STATE_VERSION:
            raise DataError(
                f"this is no state of a sample loader of version {STATE_VERSION}: it lacks "
                f"{', '.join(missing) or 'that version'}"
            )
        saved, current = state["identity"], self._identity()
        changed = [
            f"{k} was {saved.get(k)!r} and is now {v!r}"
            for k, v in current.items()
            if saved.get(k) != v
        ]
        if changed:
            raise DataError(f"the loader cannot continue other batches: {'; '.join(changed)}")
        self._epoch, self._next = state["epoch"], state["batch"]
        self.skipped = dict(state["skipped"])
        self._begun = False

    def _identity(self) -> dict[str, Any]:
        return {"data": self._fingerprint, "batch_size": self.batch_size, **self._settings}

    def _plan_of(self, epoch: int, position: int) -> "_Plan":
        """Where the samples around this position of the epoch lie."""
        block = self._order.block(epoch, position)
        inside = position - block.start
        first = inside - inside % _PLANNED
        places = self._table.places(block.ordinals[first : first + _PLANNED])
        start = block.start + first
        plan = _Plan(epoch=epoch, start=start, end=start + len(places), places=places)
        self._plan = plan
        return plan

    def _place(self, epoch: int, position: int) -> SamplePlace:
        """Where the sample at this position of the epoch lies."""
        plan = self._plan
        if plan is None or plan.epoch != epoch or not plan.start <= position < plan.end:
            plan = self._plan_of(epoch, position)
        return plan.places[position - plan.start]

    def _sample(self, place: SamplePlace) -> "Sample | _Bad":
        """May be called from many threads."""
        key, shard, parts = place
        path, wanted = self._table.shards[shard], self._wanted
        sample: Sample = {"__key__": key}
        try:
            read = self._ranges.of(path)
            for name, offset, size in parts:
                if wanted is None or name in wanted:
                    content = read(size, offset)
                    if len(content) != size:
                        cut = f"ends in its {name}, after {len(content)} of {size} bytes"
                        return _Bad(key, f"{path} {cut}")
                    sample[name] = content
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        return sample

    def _skip(self, bad: "_Bad") -> None:
        self.skipped[bad.key] = bad.why
        if len(self.skipped) > self.max_bad_samples:
            listed = "; ".join(f"{key}: {reason}" for key, reason in self.skipped.items())
            raise DataError(
                f"{len(self.skipped)} samples of {self.path} cannot be read, more than "
                f"max_bad_samples ({self.max_bad_samples}): {listed}"
            )

    def __getstate__(self) -> dict[str, Any]:
        # Open files stay with their loader.
        fresh = Ranges(cache_bytes=self._ranges.cache_bytes)
        return {**self.__dict__, "_plan": None, "_ranges": fresh}


class _Bad(NamedTuple):
    """A sample that could not be read, and why."""

    key: str
    why: str


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Places of the samples from position `start` of an epoch on, up to `end`."""

    epoch: int
    start: int
    end: int
    places: list[SamplePlace]
