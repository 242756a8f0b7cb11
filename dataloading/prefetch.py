"""Packs planned and read ahead by threads, delivered in order."""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from dataloading.plan import Pack, Planner
from dataloading.sources import Sample
from dataloading.state import LoaderState
from dataloading.threads import ReadPool, StorageWatch

_POLL_S = 0.1
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Pending(Generic[T]):
    """A pack whose samples are being read, and the planner's state once it is delivered.

    That state lies after the whole round of `dp_size` packs, one for each rank, so it is the same
    on every rank that has taken equally many.
    """

    pack: Pack
    reads: list[Future[T]]
    """Of the samples that this process reads, in the pack's order."""
    state: LoaderState


class Prefetcher(Generic[T]):
    """Iterator of one rank's packs; `num_packs` at most are in memory besides the one taken last.

    Its threads are those of the process that made it; a fork of that process has to make its own.
    """

    def __init__(
        self,
        planner: Planner,
        read: Callable[[Sample], T],
        *,
        watch: StorageWatch,
        mine: Callable[[Sequence[Sample]], list[bool]] | None = None,
        dp_rank: int,
        dp_size: int,
        first_round: int = 0,
        every_round: int = 1,
        num_packs: int,
        num_threads: int,
    ) -> None:
        """Of the rounds of `dp_size` packs, takes every `every_round`-th from `first_round` on.

        Each sample of a pack is read by `read` in some thread, of those that `mine` says; `watch`
        knows of a storage that keeps these waiting.
        """
        self._planner = planner
        self._read = read
        self._mine = mine
        self._dp_rank = dp_rank
        self._dp_size = dp_size
        self._pass_over = first_round
        self._every_round = every_round
        self._watch = watch
        self.pool = ReadPool(num_threads, "loader-read")
        """Where samples are read, and decoded where that comes later."""
        self._pid = os.getpid()
        self._room = threading.Semaphore(num_packs)
        self._queue: queue.SimpleQueue[Pending[T] | BaseException | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loader-plan", daemon=True)
        self._thread.start()

    @property
    def forked(self) -> bool:
        """Whether this is a fork of the maker: no thread runs here, and any lock may be held."""
        return os.getpid() != self._pid

    def __iter__(self) -> Iterator[Pending[T]]:
        return self

    def __next__(self) -> Pending[T]:
        """Raises what planning raised; reading errors are in the futures."""
        assert not self.forked
        if self._stop.is_set():
            raise StopIteration
        item = self._watch.take(self._queue)
        if isinstance(item, Pending):
            self._room.release()
            return item
        self.close()
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        """Stops the threads and waits for them; packs not taken are dropped."""
        if self.forked:
            return
        self._stop.set()
        self._room.release()
        self._thread.join()
        self.pool.shutdown(wait=True, cancel_futures=True)

    def stop(self) -> None:
        """Lets the threads end by themselves; may be called from any, as by a finalizer."""
        if self.forked:
            return
        self._stop.set()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        try:
            while self._wait_for_room() and (pending := self._next_round()) is not None:
                self._queue.put(pending)
            self._queue.put(None)
        except BaseException as error:
            self._queue.put(error)

    def _wait_for_room(self) -> bool:
        """Returns once one more pack may be planned; False where none is wanted any more."""
        while not self._room.acquire(timeout=_POLL_S):
            if self._stop.is_set():
                return False
        return not self._stop.is_set()

    def _next_round(self) -> Pending[T] | None:
        """Draws one pack for each rank, and starts to read this rank's; none at the end."""
        for _ in range(self._pass_over * self._dp_size):
            self._planner.next_pack()
        self._pass_over = self._every_round - 1
        mine: tuple[Pack, list[Future[T]]] | None = None
        for _ in range(self._dp_size):
            pack = self._planner.next_pack()
            if pack is None:
                break
            if pack.index % self._dp_size == self._dp_rank:
                own = self._mine(pack.samples) if self._mine else [True] * len(pack.samples)
                chosen = [s for s, is_mine in zip(pack.samples, own, strict=True) if is_mine]
                mine = pack, [self.pool.submit(self._read, s) for s in chosen]
        if mine is None:
            return None
        return Pending(pack=mine[0], reads=mine[1], state=self._planner.state())
