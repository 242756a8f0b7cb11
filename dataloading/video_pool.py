"""Open video files, lent to one thread at a time; few stay open."""

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator

from common.indexed_video import FrameTable, IndexedVideo


class ReaderPool:
    """At most `max_open` files stay open while nobody uses them; the least recently used close.

    Besides these, each thread holds the one that it reads. A forked process opens its own, since
    a decoder cannot be shared.
    """

    def __init__(self, files: list[str], tables: list[FrameTable], *, max_open: int) -> None:
        self._files = files
        self._tables = tables
        self._max_open = max_open
        self._fresh()

    @contextlib.contextmanager
    def reader(self, number: int) -> Iterator[IndexedVideo]:
        """A reader of the file of this number. Raises `MediaError` where it does not open."""
        if os.getpid() != self._pid:
            self._fresh()
        with self._lock:
            reader = self._idle.pop(self._key_of(number), None)
        if reader is None:
            reader = IndexedVideo(self._files[number], table=self._tables[number])
        try:
            yield reader
        except BaseException:
            reader.__exit__(None, None, None)
            raise
        with self._lock:
            self._count += 1
            self._idle[number, self._count] = reader
            surplus = [
                self._idle.popitem(last=False)[1] for _ in range(len(self._idle) - self._max_open)
            ]
        for old in surplus:
            old.__exit__(None, None, None)

    def close(self) -> None:
        """Closes what is idle; later use opens files again."""
        with self._lock:
            idle = list(self._idle.values())
            self._idle.clear()
        for reader in idle:
            reader.__exit__(None, None, None)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: OrderedDict[tuple[int, int], IndexedVideo] = OrderedDict()
        self._count = 0

    def _key_of(self, number: int) -> tuple[int, int]:
        return next((key for key in reversed(self._idle) if key[0] == number), (number, -1))

    def __getstate__(self) -> dict[str, object]:
        return {"files": self._files, "tables": self._tables, "max_open": self._max_open}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]
