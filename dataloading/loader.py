"""The loader: curated folders to a stream of packed batches, with exact save and restore."""

from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from common.errors import ConfigError, DataError, MediaError
from common.ranges import Ranges
from dataloading.batch import Batch, cumulative
from dataloading.catalogue import Catalogue, ValWindow
from dataloading.config import Compression, LoaderConfig
from dataloading.encoded import EncodedReader
from dataloading.plan import Planner
from dataloading.prefetch import Pending, Prefetcher
from dataloading.reader import Window, WindowReader
from dataloading.share import Peers, Sharing
from dataloading.sources import Sample
from dataloading.split import WindowShape
from dataloading.state import LoaderState
from dataloading.threads import StorageWatch


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
    starts its own, after the last batch that was delivered before the fork.

    It works under torch's `DataLoader` with `batch_size=None` and any number of workers: the order
    stays that of one process. Workers are processes of their own, so the object that was given to
    the `DataLoader` stays where it was; each batch then carries the state after it, as
    `Batch.loader_state`, for `load_state_dict` with any number of workers and ranks. torchdata's
    `StatefulDataLoader` saves and restores with the same number of workers by itself.
    """

    def __init__(
        self,
        config: LoaderConfig,
        compression: Compression,
        *,
        split: str = "train",
        dp_rank: int = 0,
        dp_size: int = 1,
        peers: Peers | None = None,
        share: str = "compressed",
        verify_packs: bool = False,
    ) -> None:
        """
        Args:
            dp_rank, dp_size: of the data axis; ranks of one model-parallel group give the same.
            peers: the model-parallel group. Its ranks read a part of each pack each and gather
                the rest, and must all take equally many packs.
            share: what travels between them; see `dataloading.share`.
            verify_packs: compares every pack over the group; for finding faults.
        """
        self._catalogue = Catalogue(config, compression, split)
        if not 0 <= dp_rank < dp_size:
            raise ConfigError(f"dp_rank is {dp_rank}, must be in 0 .. dp_size-1, {dp_size - 1}")
        self.config = config
        self.compression = compression
        self.split = split
        self.dp_rank = dp_rank
        self.dp_size = dp_size
        self._table = self._catalogue.table
        self._state = LoaderState()
        self._known_bad: set[str] = set()
        self._resumed = False
        self._worker: tuple[int, int] | None = None
        self._reader: WindowReader | EncodedReader | None = None
        self._prefetcher: Prefetcher[Any] | None = None
        self._peers = peers
        self._share = share
        self._verify_packs = verify_packs
        self._sharing: Sharing | None = None
        self._watch = StorageWatch(config.storage_timeout_s)

    # Iteration

    def __iter__(self) -> Self:
        info = get_worker_info()
        if info is not None:
            if self._peers is not None:
                raise ConfigError(
                    f"num_workers of the DataLoader is {info.num_workers}, must be 0 where a "
                    "model-parallel group shares packs: a worker is in no process group"
                )
            if self._worker is not None and self.split != "val":
                raise ConfigError(
                    "this DataLoader is iterated again with persistent workers, each of which has "
                    "read ahead as far as it came: make a new DataLoader, after load_state_dict "
                    "with the loader_state of the last batch"
                )
            self._worker = info.id, info.num_workers
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
                self._state = replace(
                    pending.state, skipped=self._state.skipped, worker=self._worker
                )
                if batch is not None:
                    if self._worker is not None:
                        batch.loader_state = self.state_dict()
                    return batch
        except BaseException:
            self.close()
            raise
        raise StopIteration

    def close(self) -> None:
        """Ends the threads. Iterating again continues after the last delivered batch."""
        self._drop_parents_threads()
        if self._prefetcher is not None:
            if self._watch.stalled:
                self._prefetcher.stop()
                self._reader, self._watch = None, StorageWatch(self.config.storage_timeout_s)
            else:
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
        """JSON-able; its size is bounded by the samples that wait and the clips in `skipped`."""
        return self._state.to_dict(self._catalogue.identity())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues after the last batch delivered when `state` was taken, at any `dp_size`.

        Raises `DataError` with the reason where data or settings make other packs, unless
        `accept_changes` is set.
        """
        identity = self._catalogue.identity()
        loaded = LoaderState.from_dict(state, identity, accept_changes=self.config.accept_changes)
        self.close()
        if state["identity"] != identity:
            planner = self._catalogue.planner()
            planner.restore_changed(loaded)
            loaded = replace(planner.state(), skipped=loaded.skipped)
        self._state = loaded
        self._known_bad = set(loaded.skipped)
        self._resumed = True

    # What there is

    @property
    def skipped(self) -> dict[str, str]:
        """Clips that give no sample, and why: too short for any window, or unreadable so far."""
        too_short = dict.fromkeys(self._catalogue.too_short, "too_short")
        return {**too_short, **self._state.skipped}

    @property
    def val_windows(self) -> list[ValWindow]:
        """The held-out windows, in their order, whatever this loader's own split."""
        return self._catalogue.val_windows()

    def typical_shape(self) -> WindowShape:
        """What most samples of this split look like; see `Windows.typical_shape`."""
        return self._catalogue.typical_shape()

    def largest_grid(self) -> tuple[int, int, int]:
        """The most patches along each of (t, h, w) that samples of this split have."""
        return self._catalogue.largest_grid()

    def describe(self) -> dict[str, Any]:
        """What an epoch holds, and how full packs will be; see `Catalogue.describe`."""
        return self._catalogue.describe()

    # Parts

    def _planner(self) -> Planner:
        return self._catalogue.planner()

    def _start(self) -> Prefetcher[Any]:
        planner = self._planner()
        planner.restore(self._state)
        if self._reader is None:
            self._reader = self._make_reader()
        if self._peers is not None:
            # Of what is encoded there is nothing to decode.
            form = "compressed" if self._table.encoded else self._share
            self._sharing = Sharing(self._peers, form, self._reader)
        shared = self._sharing
        worker, num_workers = self._worker or (0, 1)
        # A worker's own state is that after its last batch, which the others' batches follow.
        going_on = self._worker is not None and self._state.worker == self._worker
        return Prefetcher(
            planner,
            shared.read if shared else self._reader.read,
            watch=self._watch,
            mine=shared.mine if shared else None,
            dp_rank=self.dp_rank,
            dp_size=self.dp_size,
            first_round=num_workers - 1 if going_on else worker,
            every_round=num_workers,
            num_packs=self.config.prefetch_packs,
            num_threads=self.config.num_threads,
        )

    def _make_reader(self) -> WindowReader | EncodedReader:
        ranges = Ranges(cache_bytes=self.config.remote_cache_bytes)
        if self._table.encoded:
            return EncodedReader(self._table, ranges=ranges, watch=self._watch)
        return WindowReader(
            self._table,
            [stage.windows for stage in self._catalogue.stages],
            seed=self.config.seed,
            cache_bytes=self.config.cache_bytes,
            ranges=ranges,
            watch=self._watch,
            action_dim=self.config.action_dim,
        )

    def _drop_parents_threads(self) -> None:
        """After a fork: neither its threads nor the clips they were reading ever come here."""
        if self._prefetcher is not None and self._prefetcher.forked:
            self._prefetcher = self._reader = None

    def _batch(self, pending: Pending[Any]) -> Batch | None:
        samples: list[Sample] = []
        windows: list[Window] = []
        for sample, got in zip(pending.pack.samples, self._windows_of(pending), strict=True):
            if isinstance(got, MediaError):
                self._skip(sample, got)
            else:
                samples.append(sample)
                windows.append(got)
        index = pending.pack.index
        if samples:
            batch = self._assemble(index, samples, windows, suffix="")
        elif self.split == "val":
            return None
        else:
            sample, window = self._substitute(pending.pack.samples[0])
            batch = self._assemble(index, [sample], [window], suffix=f".{index}")
        if self._sharing is not None and self._verify_packs:
            self._sharing.verify(batch)
        return batch

    def _windows_of(self, pending: Pending[Any]) -> list[Window | MediaError]:
        """All of a pack, in its order, on every rank of the group alike."""
        if self._sharing is not None:
            assert self._prefetcher is not None
            parts = [self._watch.wait(read) for read in pending.reads]
            return self._sharing.exchange(pending.pack.samples, parts, self._prefetcher.pool)
        found: list[Window | MediaError] = []
        for read in pending.reads:
            try:
                found.append(self._watch.wait(read))
            except MediaError as error:
                found.append(error)
        return found

    def _read_now(self, sample: Sample) -> Window | MediaError:
        assert self._reader is not None
        if self._sharing is not None:
            assert self._prefetcher is not None
            parts = [self._sharing.read(sample)] if self._sharing.mine([sample])[0] else []
            return self._sharing.exchange([sample], parts, self._prefetcher.pool)[0]
        try:
            return self._reader.read(sample)
        except MediaError as error:
            return error

    def _substitute(self, failed: Sample) -> tuple[Sample, Window]:
        """The first readable clip after `failed`, in the same epoch and stage."""
        planner = self._planner()
        usable = np.flatnonzero(self._catalogue.stages[failed.stage].windows.usable)
        after = np.concatenate([usable[usable > failed.ordinal], usable[usable < failed.ordinal]])
        for ordinal in after:
            sample = planner.draw(np.array([ordinal]), failed.epoch, failed.stage)[0]
            got = self._read_now(sample)
            if not isinstance(got, MediaError):
                return sample, got
            self._skip(sample, got)
        raise DataError(
            f"no clip of {self._named} can be read; copy the folder again, or curate it "
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
                f"{len(found)} clips of {self._named} cannot be read, more than max_bad_clips "
                f"({self.config.max_bad_clips}); copy the folder again, or curate it again, or "
                f"raise the limit: {_listed(found)}"
            )

    @property
    def _named(self) -> str:
        return " and ".join(self.config.paths)

    def _assemble(
        self, index: int, samples: list[Sample], windows: list[Window], *, suffix: str
    ) -> Batch:
        grids = [self.compression.grid(*shape) for shape in map(self._catalogue.shape_of, samples)]
        texts = [w.text for w in windows if w.text is not None]
        epochs = ["val" if self.split == "val" else str(sample.epoch) for sample in samples]
        return Batch(
            grid=torch.tensor(grids, dtype=torch.int64),
            cu_seqlens=cumulative([t * h * w for t, h, w in grids]),
            fps=torch.tensor([w.fps for w in windows], dtype=torch.float32),
            sample_ids=[
                f"{w.clip_id}:{epoch}{suffix}" for w, epoch in zip(windows, epochs, strict=True)
            ],
            captions=[w.caption for w in windows],
            frames=[w.frames for w in windows if w.frames is not None] or None,
            latents=[w.latents for w in windows if w.latents is not None] or None,
            text=torch.cat(texts) if texts else None,
            cu_seqlens_text=cumulative([len(text) for text in texts]) if texts else None,
            actions=[w.actions for w in windows] if self.config.action_dim else None,
            start_s=torch.tensor([w.start_s for w in windows], dtype=torch.float64),
            pack_index=index,
        )


def _listed(skipped: dict[str, str]) -> str:
    return "; ".join(f"{clip_id}: {why}" for clip_id, why in skipped.items())
