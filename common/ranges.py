"""Byte ranges of files, local or in object stores, for many threads at once.

Of a file in a store each range is one request; the store is told to refuse where the object is
another one than at the first request, so that a changed file is never mixed with what it was.
What fits a number of bytes is kept in memory: what was let in stays, since an epoch visits
everything once, and a cache that forgets the oldest would lose each range just before it comes
again.
"""

import os
import threading
from collections.abc import Callable
from functools import partial
from io import FileIO
from typing import Any

import obstore
from obstore.exceptions import PreconditionError

from common.errors import DataError
from common.remote import StoreError, asked
from common.store_path import Place, StorePath

_MAX_OPEN = 64
ReadAt = Callable[[int, int], bytes]
"""(number of bytes, offset) to the bytes, fewer at the end of the file."""


class Ranges:
    """Reads ranges; up to 64 local files stay open, and `cache_bytes` of stores' ranges in memory.

    Args:
        cache_bytes: for files of stores; local ones are kept by the system.
    """

    def __init__(self, *, cache_bytes: int = 0) -> None:
        self.cache_bytes = cache_bytes
        self.used_bytes = 0
        self._fresh()

    def read(self, place: Place, num_bytes: int, offset: int) -> bytes:
        """Raises `DataError` naming the file, where the storage does not give it or it changed."""
        try:
            return self.of(place)(num_bytes, offset)
        except OSError as error:
            raise DataError(f"cannot read {place}: {error.strerror or error}") from error

    def of(self, place: Place) -> ReadAt:
        """The same for one file, with the system's own `OSError` where it is local. It stays open
        as long as what is returned is held."""
        found = self._open.get(place)
        return found if found is not None else self._opened(place)

    def _opened(self, place: Place) -> ReadAt:
        read: ReadAt
        if isinstance(place, StorePath):
            read = _Remote(place, self)
        else:
            file = FileIO(str(place))
            read = partial(os.pread, file.fileno())
            read.file = file  # type: ignore[attr-defined]  # open for as long
        with self._lock:
            while len(self._open) >= _MAX_OPEN:
                del self._open[next(iter(self._open))]
            self._open[place] = read
        return read

    def kept(self, key: tuple[Place, int, int]) -> bytes | None:
        return self._kept.get(key)

    def keep(self, key: tuple[Place, int, int], data: bytes) -> None:
        with self._lock:
            if key not in self._kept and self.used_bytes + len(data) <= self.cache_bytes:
                self._kept[key] = data
                self.used_bytes += len(data)

    def _fresh(self) -> None:
        self._open: dict[Place, ReadAt] = {}
        self._kept: dict[tuple[Place, int, int], bytes] = {}
        self._lock = threading.Lock()
        self.used_bytes = 0

    def __getstate__(self) -> dict[str, Any]:
        # Open files, locks and what is kept stay in their process.
        return {"cache_bytes": self.cache_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.cache_bytes = state["cache_bytes"]
        self._fresh()


class _Remote:
    def __init__(self, path: StorePath, ranges: Ranges) -> None:
        self._path = path
        self._ranges = ranges
        self._tag: str | None = None
        self._num_bytes: int | None = None

    def __call__(self, num_bytes: int, offset: int) -> bytes:
        if self._num_bytes is not None:
            num_bytes = max(0, min(num_bytes, self._num_bytes - offset))
        if num_bytes == 0:
            return b""
        key = self._path, num_bytes, offset
        kept = self._ranges.kept(key)
        if kept is not None:
            return kept

        def ask(store: Any, name: str) -> bytes:
            options: Any = {"range": (offset, offset + num_bytes)}
            if self._tag is not None:
                options["if_match"] = self._tag
            try:
                answer = obstore.get(store, name, options=options)
            except PreconditionError:
                raise DataError(f"{self._path} was changed while it was read") from None
            self._tag, self._num_bytes = answer.meta["e_tag"], answer.meta["size"]
            data = bytes(answer.bytes())
            if len(data) != min(num_bytes, self._num_bytes - offset):
                raise OSError(f"{len(data)} bytes came where {num_bytes} should be")
            return data

        try:
            data = asked(str(self._path), ask)
        except StoreError as error:
            raise DataError(f"cannot read {error.detail}") from None
        self._ranges.keep(key, data)
        return data
