"""Rows of numbers in order of time, which wait on disk: memory holds the newest, however many there
are."""

import tempfile
from array import array
from bisect import bisect_left
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from common.machine import writing_to

_BLOCK_BYTES = 32 * 1024
_LEAST_ROWS = 16


class Spill:
    """A file without a name, made at the first `write` and gone when this is closed. Faults of its
    disk are raised as `VfmError`.

    Args:
        folder: on whose disk it lies; None takes the system's folder for temporary files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._file: IO[bytes] | None = None
        self._num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def write(self, data: bytes) -> int:
        """Where in the file the bytes begin."""
        begin = self._num_bytes
        with writing_to(self._folder):
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - see `close`
            self._file.seek(begin)
            self._file.write(data)
        self._num_bytes += len(data)
        return begin

    def read(self, begin: int, num_bytes: int) -> bytes:
        assert self._file is not None, "nothing was written"
        with writing_to(self._folder):  # which writes what waits in its buffer
            self._file.seek(begin)
        return self._file.read(num_bytes)


class Tape:
    """Rows of one kind. Holds 32 KiB of them, and 16 bytes for each 32 KiB on disk.

    Args:
        spill: where the older rows go.
        fields: name, NumPy type and, of several numbers, shape of what follows the time in a row.
    """

    def __init__(self, spill: Spill, *fields: tuple[Any, ...]) -> None:
        self._spill = spill
        kind = np.dtype([("at", np.int64), *fields])
        self._new = np.empty(max(_LEAST_ROWS, _BLOCK_BYTES // kind.itemsize), kind)
        self._num_new = 0
        self._firsts = array("q")
        """The first time of each block on disk."""
        self._begins = array("q")

    def __len__(self) -> int:
        return len(self._firsts) * len(self._new) + self._num_new

    def append(self, at: int, *values: Any) -> None:
        """`at` must not be less than that of the row before."""
        self._new[self._num_new] = (at, *values)
        self._num_new += 1
        if self._num_new == len(self._new):
            self._firsts.append(int(self._new["at"][0]))
            self._begins.append(self._spill.write(self._new.tobytes()))
            self._num_new = 0

    def between(self, start: int, end: int) -> np.ndarray:
        """The rows with `start <= at < end`: a structured array, the time as its field `at`."""
        first = max(0, bisect_left(self._firsts, start) - 1)
        stop = bisect_left(self._firsts, end)
        rows = [self._block(number) for number in range(first, stop)]
        if stop == len(self._firsts):
            rows.append(self._new[: self._num_new])
        found = np.concatenate(rows) if rows else self._new[:0]
        begin, past = np.searchsorted(found["at"], (start, end))
        return found[begin:past]

    def position(self, at: int) -> int:
        """The number of rows before a time."""
        number = bisect_left(self._firsts, at)
        new = self._new["at"][: self._num_new]
        if number == len(self._firsts) and (not number or (len(new) and new[0] < at)):
            return number * len(self._new) + int(np.searchsorted(new, at))
        if not number:
            return 0
        block = self._block(number - 1)["at"]
        return (number - 1) * len(self._new) + int(np.searchsorted(block, at))

    def time(self, position: int) -> int:
        """The time of a row by its number; raises `IndexError` past the last."""
        number, inside = divmod(position, len(self._new))
        if not 0 <= position < len(self):
            raise IndexError(f"row {position} of {len(self)}")
        block = self._new if number == len(self._firsts) else self._block(number)
        return int(block["at"][inside])

    def _block(self, number: int) -> np.ndarray:
        data = self._spill.read(self._begins[number], self._new.nbytes)
        return np.frombuffer(data, self._new.dtype)
