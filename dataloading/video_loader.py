"""Batches of windows, decoded ahead by threads and delivered in one exact order."""

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from common import rng
from common.errors import ConfigError, DataError, MediaError
from dataloading.video_spec import finish

if TYPE_CHECKING:
    from dataloading.video import VideoDataset, VideoWindow

STATE_VERSION = 2
_STATE_KEYS = ("version", "identity", "epoch", "batch", "skipped")


@dataclass(frozen=True, kw_only=True)
class VideoBatch:
    """B windows of T frames."""

    frames: Tensor
    """`[B, T, C, H, W]` or in the dataset's other layout, in its type, on the loader's device."""
    times_s: Tensor
    """`float64 [B, T]`, on the CPU: each frame's presentation time in its file."""
    files: list[str]
    indices: list[int]
    """The windows' numbers in the dataset."""


@dataclass(frozen=True, kw_only=True)
class _Read:
    """A window, and those that were to come in its place and did not decode, with reasons."""

    window: "VideoWindow"
    bad: dict[str, str]


@dataclass(kw_only=True)
class _Pending:
    number: int
    windows: list["Future[_Read]"]
    sent: "_Sent | None" = field(default=None)


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """A batch whose bytes may still be on their way to the device."""

    batch: VideoBatch
    source: Tensor | None = None
    """Page-locked memory that is being copied from."""
    done: "torch.cuda.Event | None" = None


class VideoLoader:
    """Iterating gives one epoch; iterating anew gives the next one, with another order.

    A window whose frames do not decode is replaced by the first that does of those 1, 2, 4, 8, ...
    after it in the dataset, the first after its last; so each rank and each run does the same. It
    is named in `skipped`, and `indices` of the batch say which came. More than `max_bad_windows`
    that this process found end the epoch with a list.

    Which windows make which batch depends on (seed, epoch) and the dataset only, not on threads or
    speed. `state_dict` speaks of what was delivered, not of what is decoded ahead; after
    `load_state_dict` the next iteration goes on with the following batch.

    Args:
        batch_size: windows in a batch.
        shuffle: takes the windows in a random order, another one each epoch.
        drop_last: leaves out a last batch that is not full.
        seed: of the order; None takes the dataset's.
        num_threads: that decode, each one window at a time.
        prefetch: batches that are decoded, or being decoded, ahead of the one in use.
        device: where frames go. To a GPU they are sent as bytes from page-locked memory, on a
            stream of their own, and become floats there.
        rank, num_ranks: of `num_ranks` processes with equal arguments, this one takes every
            `num_ranks`-th batch from `rank` on; surplus batches at the end are left out.
    """

    def __init__(
        self,
        dataset: "VideoDataset",
        batch_size: int = 8,
        shuffle: bool = False,
        *,
        drop_last: bool = False,
        seed: int | None = None,
        num_threads: int = 4,
        prefetch: int = 2,
        device: str | torch.device = "cpu",
        rank: int = 0,
        num_ranks: int = 1,
        max_bad_windows: int = 100,
    ) -> None:
        for name, value in (
            ("batch_size", batch_size),
            ("num_threads", num_threads),
            ("prefetch", prefetch),
        ):
            if value < 1:
                raise ConfigError(f"{name} is {value}, must be at least 1")
        if not 0 <= rank < num_ranks:
            raise ConfigError(f"rank is {rank}, must be in 0 .. num_ranks-1, {num_ranks - 1}")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = dataset.seed if seed is None else seed
        rng.check_seed(self.seed)
        self.rank = rank
        self.num_ranks = num_ranks
        self.device = torch.device(device)
        self._num_threads = num_threads
        self._prefetch = prefetch
        self.max_bad_windows = max_bad_windows
        self.skipped: dict[str, str] = {}
        """What could not be decoded so far, `FILE: window N`, and why."""
        self._found = 0
        self._epoch = 0
        self._next = 0
        self._resumed = True
        self._turn = 0
        if not len(self):
            raise ConfigError(
                f"batch_size {batch_size} on {num_ranks} ranks is more than the {len(dataset)} "
                "windows of the dataset; take a smaller one, or drop_last=False"
            )

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        num_windows = len(self.dataset)
        whole = num_windows // self.batch_size
        batches = whole if self.drop_last else -(-num_windows // self.batch_size)
        return batches // self.num_ranks

    def __iter__(self) -> Iterator[VideoBatch]:
        if not self._resumed:
            self._epoch, self._next = self._epoch + 1, 0
        self._resumed = False
        self._turn += 1
        return self._batches(self._turn)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; the same on all ranks that took equally many batches, up to `skipped`."""
        done = self._next == len(self)
        return {
            "version": STATE_VERSION,
            "identity": self._identity(),
            "epoch": self._epoch + done,
            "batch": 0 if done else self._next,
            "skipped": dict(self.skipped),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises `DataError` with the reason where the state belongs to other batches."""
        missing = [k for k in _STATE_KEYS if k not in state]
        if missing:
            raise DataError(f"this is no state of a video loader: it lacks {', '.join(missing)}")
        if state["version"] != STATE_VERSION:
            raise DataError(
                f"the state has version {state['version']}, this vfm reads {STATE_VERSION}"
            )
        saved, current = state["identity"], self._identity()
        changed = [
            f"{k} was {saved.get(k)!r} and is now {current[k]!r}"
            for k in current
            if saved.get(k) != current[k]
        ]
        if changed:
            raise DataError(
                f"the loader cannot continue other batches: {'; '.join(changed)}. Give the saved "
                "arguments and files, or start without the state"
            )
        self._epoch, self._next = state["epoch"], state["batch"]
        self.skipped = dict(state["skipped"])
        self._resumed = True
        self._turn += 1

    def order(self, epoch: int) -> Tensor:
        """`int64 [n]`, the windows of an epoch in their order, for all ranks together."""
        if not self.shuffle:
            return torch.arange(len(self.dataset))
        return rng.permutation(rng.key(self.seed, "video_order", step=epoch), len(self.dataset))

    def _identity(self) -> dict[str, Any]:
        return {
            "data": self.dataset.fingerprint(),
            "seed": self.seed,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "num_ranks": self.num_ranks,
        }

    def _batches(self, turn: int) -> Iterator[VideoBatch]:
        """The rest of the epoch. Ends its threads when it is done, dropped or broken off."""
        epoch, order = self._epoch, self.order(self._epoch)
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        stop = threading.Event()
        pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="video-decode")

        def read(index: int) -> "_Read":
            if stop.is_set():
                raise RuntimeError("the loader was closed")
            return self._readable(index, epoch)

        def begin(number: int) -> _Pending:
            start = (number * self.num_ranks + self.rank) * self.batch_size
            indices = order[start : start + self.batch_size].tolist()
            return _Pending(number=number, windows=[pool.submit(read, i) for i in indices])

        try:
            waiting: deque[_Pending] = deque()
            upcoming = iter(range(self._next, len(self)))
            while True:
                while len(waiting) <= self._prefetch and (n := next(upcoming, None)) is not None:
                    waiting.append(begin(n))
                if not waiting:
                    return
                current = waiting.popleft()
                sent = current.sent or self._send(current, stream)
                # The next batch travels while this one is computed on, if it is decoded by now.
                if waiting and all(w.done() for w in waiting[0].windows):
                    waiting[0].sent = self._send(waiting[0], stream)
                if sent.done is not None:
                    torch.cuda.current_stream(self.device).wait_event(sent.done)
                    sent.batch.frames.record_stream(torch.cuda.current_stream(self.device))
                if turn != self._turn:
                    raise RuntimeError(
                        "this iterator ended when another was begun, or a state was loaded"
                    )
                self._next = current.number + 1
                yield sent.batch
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _readable(self, index: int, epoch: int) -> _Read:
        """The window, or its substitute. Raises `DataError` where none of those decodes."""
        bad: dict[str, str] = {}
        num_windows = len(self.dataset)
        steps = [0, *(1 << k for k in range((num_windows - 1).bit_length()))]
        for place in dict.fromkeys((index + step) % num_windows for step in steps):
            try:
                return _Read(window=self.dataset.read(place, epoch=epoch), bad=bad)
            except MediaError as error:
                bad[f"{self.dataset.file_of(place)}: window {place}"] = str(error)
        raise DataError(f"no window in place of window {index} decodes: {_listed(bad)}")

    def _note(self, bad: list[dict[str, str]]) -> None:
        new = {name: why for of in bad for name, why in of.items() if name not in self.skipped}
        self.skipped.update(new)
        self._found += len(new)
        if self._found > self.max_bad_windows:
            raise DataError(
                f"{self._found} windows do not decode, more than max_bad_windows "
                f"({self.max_bad_windows}): {_listed(self.skipped)}"
            )

    def _send(self, pending: _Pending, stream: "torch.cuda.Stream | None") -> _Sent:
        """Puts a batch together and on its way. Raises what reading its windows raised."""
        reads = [future.result() for future in pending.windows]
        self._note([read.bad for read in reads])
        windows = [read.window for read in reads]
        pixels = torch.stack([w.pixels for w in windows])
        source = done = None
        options = self.dataset.options
        if stream is None:
            frames = finish(pixels.to(self.device), options)
        else:
            source = pixels.pin_memory()
            with torch.cuda.stream(stream):
                frames = finish(source.to(self.device, non_blocking=True), options)
                done = torch.cuda.Event()
                done.record(stream)
        batch = VideoBatch(
            frames=frames,
            times_s=torch.stack([w.times_s for w in windows]),
            files=[w.file for w in windows],
            indices=[w.index for w in windows],
        )
        return _Sent(batch=batch, source=source, done=done)


def _listed(bad: dict[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in bad.items())
