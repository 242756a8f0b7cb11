"""The thumbnails of one source while it is read."""

import contextlib
import tempfile
from array import array
from bisect import bisect_left
from pathlib import Path

import cv2
import numpy as np

from curation.machine import writing_to


class Strip:
    """Thumbnails of sampled frames as JPEG, in a file without a name that is gone when this is
    closed: where clips begin is known at the end alone, and memory must not grow until then.

    Args:
        folder: on whose disk the file lies.
    """

    def __init__(self, width_px: int, folder: Path) -> None:
        self._width_px = width_px
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self.clear()

    def __enter__(self) -> "Strip":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def clear(self) -> None:
        self._stack.close()
        with writing_to(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - the stack closes it
            self._file = self._stack.enter_context(file)
        self._times_us = array("q")
        self._ends = array("q", [0])
        """Where each picture ends in the file, after that of none."""

    def feed(self, pts_us: int, bgr: np.ndarray) -> None:
        height, width = bgr.shape[:2]
        scale = self._width_px / width
        if scale < 1:
            size = (self._width_px, max(1, round(height * scale)))
            bgr = cv2.resize(bgr, size, interpolation=cv2.INTER_AREA)
        jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, 80])[1].tobytes()
        with writing_to(self._folder):
            self._file.write(jpeg)
        self._times_us.append(pts_us)
        self._ends.append(self._ends[-1] + len(jpeg))

    def nearest(self, start_us: int, end_us: int) -> bytes | None:
        """The picture nearest to the middle of a span, if there is one in it."""
        middle_us = (start_us + end_us) // 2
        inside = range(bisect_left(self._times_us, start_us), bisect_left(self._times_us, end_us))
        if not inside:
            return None
        number = min(inside, key=lambda n: abs(self._times_us[n] - middle_us))
        self._file.seek(self._ends[number])
        return self._file.read(self._ends[number + 1] - self._ends[number])
