"""Threads that read, and what is known of a storage that does not answer."""

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, TypeVar

from common.errors import DataError

T = TypeVar("T")
_POLL_S = 0.5
_AT_EXIT_S = 5.0


class ReadPool(Executor):
    """A pool whose threads do not keep a process from ending while a storage does not answer."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._threads = [
            threading.Thread(target=_work, args=(self._queue,), name=f"{name}-{i}", daemon=True)
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()
        # A thread that computes while the interpreter ends would take it down.
        at_exit = weakref.WeakMethod(self._end)
        atexit.register(lambda: (end := at_exit()) and end())

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if self._closed:
            raise RuntimeError("the pool was shut down")
        future: Future[T] = Future()
        self._queue.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while cancel_futures:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                item[0].cancel()
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _end(self) -> None:
        self.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + _AT_EXIT_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


def _work(waiting: "queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]") -> None:
    while (item := waiting.get()) is not None:
        future, call = item
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        # Nothing of it may live on while this thread waits for more.
        del item, future, call


class StorageWatch:
    """Which reads of the storage are under way, and since when. For many threads."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.stalled = False
        """Whether that was found: the threads that wait for the storage may do so for ever."""
        self._since: dict[object, tuple[float, str]] = {}

    @contextmanager
    def reading(self, place: object) -> Iterator[None]:
        """Around a read of this file."""
        mark = object()
        self._since[mark] = time.monotonic(), str(place)
        try:
            yield
        finally:
            del self._since[mark]

    def check(self) -> None:
        """Raises `DataError` naming the file that has been read for longer than the limit."""
        now = time.monotonic()
        for since, place in list(self._since.values()):
            if now - since > self.limit_s:
                self.stalled = True
                raise DataError(
                    f"{place} has not answered for {now - since:.0f} s, more than "
                    f"storage_timeout_s ({self.limit_s:g}); see to the storage, and go on from the "
                    "last saved state"
                )

    def wait(self, future: "Future[T]") -> T:
        """The future's result. Raises `DataError` where the storage does not answer meanwhile."""
        while True:
            try:
                return future.result(_POLL_S)
            except TimeoutError:
                # What was read may itself have timed out.
                if future.done():
                    raise
                self.check()

    def take(self, items: "queue.SimpleQueue[T]") -> T:
        """The next item of a queue. Raises as `wait`."""
        while True:
            try:
                return items.get(timeout=_POLL_S)
            except queue.Empty:
                self.check()
