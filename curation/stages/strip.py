"""The thumbnails of one source while it is read."""

import cv2
import numpy as np

from common.tape import Spill, Tape


class Strip:
    """Thumbnails of sampled frames as JPEG, on disk: where clips begin is known at the end alone,
    and memory must not grow until then."""

    def __init__(self, width_px: int, spill: Spill) -> None:
        self._width_px = width_px
        self._spill = spill
        self._tape = Tape(spill, ("begin", np.int64), ("num_bytes", np.int64))

    def feed(self, pts_us: int, bgr: np.ndarray) -> None:
        height, width = bgr.shape[:2]
        scale = self._width_px / width
        if scale < 1:
            size = (self._width_px, max(1, round(height * scale)))
            bgr = cv2.resize(bgr, size, interpolation=cv2.INTER_AREA)
        jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, 80])[1].tobytes()
        self._tape.append(pts_us, self._spill.write(jpeg), len(jpeg))

    def nearest(self, start_us: int, end_us: int) -> bytes | None:
        """The picture nearest to the middle of a span, if there is one in it."""
        rows = self._tape.between(start_us, end_us)
        if not len(rows):
            return None
        _, begin, num_bytes = rows[np.abs(rows["at"] - (start_us + end_us) // 2).argmin()].tolist()
        return self._spill.read(begin, num_bytes)
