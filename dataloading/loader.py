"""The loader: a curated folder to a stream of packed batches, with exact save and restore."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from common.errors import ConfigError, DataError, MediaError, nearest
from dataloading.batch import Batch, cumulative
from dataloading.config import SPLITS, Compression, LoaderConfig
from dataloading.index import ClipTable
from dataloading.order import FixedOrder, ShuffledOrder
from dataloading.plan import Planner, Sample
from dataloading.prefetch import Pending, Prefetcher
from dataloading.reader import Window, WindowReader
from dataloading.split import WindowShape, windows_of
from dataloading.state import LoaderState

PLAN_VERSION = 2
"""Raised by any change that makes other packs from the same data and settings."""
_FILL_PACKS = 200


@dataclass(frozen=True, kw_only=True)
class ValWindow:
    """A window held out of training."""

    clip_id: str
    start_s: float
    num_frames: int
    fps: float


class PackedLoader(IterableDataset[Batch]):
    """Iterator of `Batch`, for one data-parallel rank.

    Pack k of the global stream goes to rank k % dp_size; the stream depends on data, settings and
    seed alone. `train` and `all` never end. `val` gives its windows once, in fixed order, from the
    first each time it is iterated; ranks may get numbers of packs that differ by one, and by packs
    that were left out.

    A clip that cannot be read leaves its pack, which is then shorter, and is named in `skipped`.
    If all of a pack's clips fail, the first readable clip after them in the manifest's order takes
    their place, under the id `CLIP_ID:EPOCH.PACK`; in `val`, the pack is left out. So one rank's
    damaged clips change no other rank's packs.

    `state_dict` describes what was delivered, not what is read ahead, and is the same on all ranks
    that took equally many packs, up to `skipped`; `load_state_dict` takes it at any `dp_size`.
    Threads start with the first batch; `close` (or the context manager) ends them. A forked process
    starts its own, after the last batch that was delivered before the fork. Workers of a torch
    `DataLoader` are refused, since the state would stay behind in the process that saves it.
    """

    def __init__(
        self,
        config: LoaderConfig,
        compression: Compression,
        *,
        split: str = "train",
        dp_rank: int = 0,
        dp_size: int = 1,
    ) -> None:
        if split not in SPLITS:
            raise ConfigError(
                f"split is {split!r}, must be one of {', '.join(SPLITS)}" + nearest(split, SPLITS)
            )
        if not 0 <= dp_rank < dp_size:
            raise ConfigError(f"dp_rank is {dp_rank}, must be in 0 .. dp_size-1, {dp_size - 1}")
        config.check(compression)
        self.config = config
        self.compression = compression
        self.split = split
        self.dp_rank = dp_rank
        self.dp_size = dp_size
        self._table = ClipTable(Path(config.path))
        self._windows = windows_of(self._table, config, compression, split)
        if split != "val" and not self._windows.usable.any():
            raise DataError(
                f"none of the {len(self._table)} clips of {config.path} has room for a window: "
                f"num_frames {config.num_frames} at {config.fps or 'their own'} frames/s; take "
                "shorter windows or a higher fps"
            )
        self._pool_size, self._max_age = config.pool(max(1.0, self._windows.mean_tokens))
        self._too_short = (
            [] if split == "val" else self._table.clip_ids(np.flatnonzero(~self._windows.usable))
        )
        self._state = LoaderState()
        self._known_bad: set[str] = set()
        self._resumed = False
        self._reader: WindowReader | None = None
        self._prefetcher: Prefetcher | None = None

    # Iteration

    def __iter__(self) -> Self:
        if self.split == "val" and not self._resumed:
            self.close()
            self._state = LoaderState(skipped=self._state.skipped)
        self._resumed = False
        return self

    def __next__(self) -> Batch:
        self._drop_parents_threads()
        if self._prefetcher is None:
            self._prefetcher = self._start()
        try:
            for pending in self._prefetcher:
                batch = self._batch(pending)
                self._state = replace(pending.state, skipped=self._state.skipped)
                if batch is not None:
                    return batch
        except BaseException:
            self.close()
            raise
        raise StopIteration

    def close(self) -> None:
        """Ends the threads. Iterating again continues after the last delivered batch."""
        self._drop_parents_threads()
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        prefetcher = getattr(self, "_prefetcher", None)
        if prefetcher is not None:
            prefetcher.stop()

    # State

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; its size is bounded by `pool_size` and the number of clips in `skipped`."""
        return self._state.to_dict(self.identity())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues after the last batch delivered when `state` was taken, at any `dp_size`.

        Raises `DataError` with the reason where data or settings make other packs.
        """
        loaded = LoaderState.from_dict(state, self.identity())
        self.close()
        self._state = loaded
        self._known_bad = set(loaded.skipped)
        self._resumed = True

    def identity(self) -> dict[str, Any]:
        """All that the stream of packs depends on."""
        config, compression = self.config, self.compression
        return {
            "plan_version": PLAN_VERSION,
            "data": self._table.fingerprint,
            "split": self.split,
            "seed": config.seed,
            "token_budget": config.token_budget,
            "num_frames": sorted(config.num_frames),
            "size": list(config.size),
            "resize": config.resize,
            "fps": config.fps,
            "shuffle_shards": config.shuffle_shards,
            "pool_size": self._pool_size,
            "max_age": self._max_age,
            "compression": [compression.temporal, compression.spatial, *compression.patch],
        }

    # What there is

    @property
    def skipped(self) -> dict[str, str]:
        """Clips that give no sample, and why: too short for any window, or unreadable so far."""
        return {**dict.fromkeys(self._too_short, "too_short"), **self._state.skipped}

    @property
    def val_windows(self) -> list[ValWindow]:
        """The held-out windows, in their order, whatever this loader's own split."""
        windows = windows_of(self._table, self.config, self.compression, "val")
        held = np.flatnonzero(windows.usable)
        lengths = windows.candidates[np.argmax(windows.starts[held] > 0, axis=1)]
        starts_s = windows.first[held, 0] / self._table.fps[held]
        columns = (lengths.tolist(), starts_s.tolist(), windows.fps[held].tolist())
        return [
            ValWindow(clip_id=i, num_frames=t, start_s=s, fps=f if t > 1 else 0.0)
            for i, t, s, f in zip(self._table.clip_ids(held), *columns, strict=True)
        ]

    def typical_shape(self) -> WindowShape:
        """What most samples of this split look like; see `Windows.typical_shape`."""
        return self._windows.typical_shape()

    def describe(self, *, max_packs: int = _FILL_PACKS) -> dict[str, Any]:
        """What an epoch holds, and how full packs will be (planned, without reading a video).

        `max_packs` are planned for it; many cost seconds where an epoch is far less than a pack.
        """
        windows = self._windows
        fitting = windows.starts > 0
        num_clips = int(windows.usable.sum())
        planner = self._planner()
        packs = []
        while len(packs) < max_packs and (pack := planner.next_pack()) is not None:
            packs.append(pack)
        tokens = sum(pack.tokens for pack in packs)
        lengths = windows.candidates.tolist()
        return {
            "split": self.split,
            "clips": len(self._table),
            "samples_per_epoch": num_clips,
            "too_short": len(self._too_short),
            "windows": int(windows.starts.sum()),
            "clips_that_fit": dict(zip(lengths, fitting.sum(axis=0).tolist(), strict=True)),
            "tokens_per_epoch": num_clips * windows.mean_tokens,
            "token_budget": self.config.token_budget,
            "fill": tokens / (len(packs) * self.config.token_budget) if packs else 0.0,
            "samples_per_pack": sum(len(p.samples) for p in packs) / len(packs) if packs else 0.0,
        }

    # Parts

    def _planner(self) -> Planner:
        config, windows = self.config, self._windows
        if self.split == "val":
            order = FixedOrder(windows.usable)
        else:
            order = ShuffledOrder(
                windows.usable,
                self._table.shard_start,
                seed=config.seed,
                shuffle_shards=config.shuffle_shards,
            )
        return Planner(
            self._table,
            windows,
            order,
            seed=config.seed,
            token_budget=config.token_budget,
            pool_size=self._pool_size,
            max_age=self._max_age,
        )

    def _start(self) -> Prefetcher:
        worker = get_worker_info()
        if worker is not None:
            raise ConfigError(
                f"num_workers of the DataLoader is {worker.num_workers}, must be 0: a worker reads "
                "ahead in a process of its own, so that state_dict() here would stay at the start "
                "and a resumed run would repeat data; raise num_threads of the loader instead"
            )
        planner = self._planner()
        planner.restore(self._state)
        if self._reader is None:
            self._reader = WindowReader(
                self._table,
                self._windows,
                seed=self.config.seed,
                cache_bytes=self.config.cache_bytes,
            )
        return Prefetcher(
            planner,
            self._reader,
            dp_rank=self.dp_rank,
            dp_size=self.dp_size,
            num_packs=self.config.prefetch_packs,
            num_threads=self.config.num_threads,
        )

    def _drop_parents_threads(self) -> None:
        """After a fork: neither its threads nor the clips they were reading ever come here."""
        if self._prefetcher is not None and self._prefetcher.forked:
            self._prefetcher = self._reader = None

    def _batch(self, pending: Pending) -> Batch | None:
        samples: list[Sample] = []
        windows: list[Window] = []
        for sample, future in zip(pending.pack.samples, pending.windows, strict=True):
            try:
                windows.append(future.result())
                samples.append(sample)
            except MediaError as error:
                self._skip(sample, error)
        index = pending.pack.index
        if samples:
            return self._assemble(index, samples, windows, suffix="")
        if self.split == "val":
            return None
        sample, window = self._substitute(pending.pack.samples[0])
        return self._assemble(index, [sample], [window], suffix=f".{index}")

    def _substitute(self, failed: Sample) -> tuple[Sample, Window]:
        """The first readable clip after `failed`, in the same epoch."""
        assert self._reader is not None
        planner = self._planner()
        usable = np.flatnonzero(self._windows.usable)
        after = np.concatenate([usable[usable > failed.ordinal], usable[usable < failed.ordinal]])
        for ordinal in after:
            sample = planner.draw(np.array([ordinal]), failed.epoch)[0]
            try:
                return sample, self._reader.read(sample)
            except MediaError as error:
                self._skip(sample, error)
        raise DataError(
            f"no clip of {self.config.path} can be read; copy the folder again, or curate it "
            f"again: {_listed(self._state.skipped)}"
        )

    def _skip(self, sample: Sample, error: MediaError) -> None:
        """Notes the clip; raises `DataError` where this process found too many."""
        clip_id = self._table.clip_ids(np.array([sample.ordinal]))[0]
        skipped = {**self._state.skipped}
        skipped.setdefault(clip_id, str(error))
        self._state = replace(self._state, skipped=skipped)
        # A resumed state holds what all ranks found, and each was within its limit.
        found = {i: why for i, why in skipped.items() if i not in self._known_bad}
        if len(found) > self.config.max_bad_clips:
            raise DataError(
                f"{len(found)} clips of {self.config.path} cannot be read, more than max_bad_clips "
                f"({self.config.max_bad_clips}); copy the folder again, or curate it again, or "
                f"raise the limit: {_listed(found)}"
            )

    def _assemble(
        self, index: int, samples: list[Sample], windows: list[Window], *, suffix: str
    ) -> Batch:
        grids = [
            self.compression.grid(w.frames.shape[0], w.frames.shape[2], w.frames.shape[1])
            for w in windows
        ]
        epochs = ["val" if self.split == "val" else str(sample.epoch) for sample in samples]
        return Batch(
            grid=torch.tensor(grids, dtype=torch.int64),
            cu_seqlens=cumulative([t * h * w for t, h, w in grids]),
            fps=torch.tensor([w.fps for w in windows], dtype=torch.float32),
            sample_ids=[
                f"{w.clip_id}:{epoch}{suffix}" for w, epoch in zip(windows, epochs, strict=True)
            ],
            captions=[w.caption for w in windows],
            frames=[w.frames for w in windows],
            start_s=torch.tensor([w.start_s for w in windows], dtype=torch.float64),
            pack_index=index,
        )


def _listed(skipped: dict[str, str]) -> str:
    return "; ".join(f"{clip_id}: {why}" for clip_id, why in skipped.items())
