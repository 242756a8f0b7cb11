"""How the light lies in a clip's pictures, and the black bars around them."""

import math
from typing import Any, NamedTuple

import cv2
import numpy as np

from common.tape import Spill, Tape
from curation.config import AnalysisConfig
from curation.measures.base import Measure, Picture, Values, median

BINS = 64
_DARKEST, _BRIGHTEST = 2, BINS - 2
"""Bins of four grey levels each: below 8 of 255 is crushed, from 248 on is blown."""
_FLAT = 12
"""Grey levels within which all of a bar's line lies; the dark of a picture varies more."""
_LEAST_BAR = 0.02
_MOST_BARS = 0.9
"""Of a side: less is the edge of a picture, more a picture too dark to tell."""

Crop = tuple[int, int, int, int]
"""(left, top, width, height)"""


class Bars(NamedTuple):
    """Black lines at the four edges of a picture, as shares of its sides."""

    left: float
    top: float
    right: float
    bottom: float


class Light(Measure):
    name = "light"
    version = 2

    def __init__(self, config: AnalysisConfig, spill: Spill) -> None:
        super().__init__(config, spill)
        self._tape = Tape(
            spill,
            ("luma", np.float64),
            ("histogram", np.float32, (BINS,)),
            ("bars", np.float64, (len(Bars._fields),)),
        )
        """Bars are NaN where there is no picture beside them."""
        self._num_pixels = 0

    @classmethod
    def params(cls, config: AnalysisConfig) -> dict[str, Any]:
        return {**super().params(config), "bar_level": config.bar_level}

    def feed(self, picture: Picture, sampled: bool) -> None:
        if not sampled:
            return
        grey = picture.grey
        found = bars(grey, self._config.bar_level)
        if found is not None and any(side >= _LEAST_BAR for side in found):
            whole = picture.shown()
            if whole is not None:
                found = refined(found, whole, grey.shape, self._config.bar_level)
        self._num_pixels = grey.size
        sides = (math.nan,) * len(Bars._fields) if found is None else found
        self._tape.append(picture.pts_us, grey.mean(), histogram(grey), sides)

    def over(self, start_us: int, end_us: int) -> Values:
        stills = self._tape.between(start_us, end_us)
        if not len(stills):
            return dict.fromkeys(("luma", "contrast", "crushed", "blown", "letterbox"))
        found = common_bars(stills["bars"])
        share = None
        if found is not None:
            share = 1 - (1 - found.left - found.right) * (1 - found.top - found.bottom)
        num_black = (share or 0.0) * self._num_pixels
        return {
            "luma": median(stills["luma"]),
            **exposure(stills["histogram"], num_black),
            "letterbox": share,
        }

    def crop(self, start_us: int, end_us: int, width: int, height: int) -> Crop | None:
        """What of a span's pictures is inside its black bars, on even lines, as 4:2:0 needs; None
        where that cannot be told. Lines that bar and picture share are left out.

        Args:
            width, height: of the source as displayed.
        """
        found = common_bars(self._tape.between(start_us, end_us)["bars"])
        if found is None:
            return None
        if not any(found):
            return 0, 0, width, height
        left, top = (_even_up(f * n) for f, n in ((found.left, width), (found.top, height)))
        right, bottom = ((1 - found.right) * width, (1 - found.bottom) * height)
        return left, top, _even_down(right - left), _even_down(bottom - top)


def _even_up(length: float) -> int:
    return 2 * math.ceil(round(length, 3) / 2)


def _even_down(length: float) -> int:
    return max(2, 2 * math.floor(round(length, 3) / 2))


def histogram(grey: np.ndarray) -> np.ndarray:
    """`float32 [BINS]`: pixels of `uint8 [H, W]` by brightness."""
    return cv2.calcHist([grey], [0], None, [BINS], [0, 256]).ravel()


def exposure(histograms: np.ndarray, num_black: float) -> dict[str, float]:
    """How the light lies in the pictures of a clip: medians over its samples.

    `contrast` is RMS contrast, the standard deviation of brightness over its range (Peli 1990,
    "Contrast in complex images", eq. 2); `crushed` and `blown` are the shares of the picture below
    8 and from 248 of 255 on, where no detail is left. All 0 to 1.

    Args:
        histograms: `[samples, BINS]`.
        num_black: pixels of black bars, which are no part of the picture: the darkest ones.
    """
    below = np.cumsum(histograms, axis=1)
    inside = np.diff(np.maximum(below - num_black, 0.0), axis=1, prepend=0.0)
    total = np.maximum(inside.sum(axis=1), 1.0)
    levels = (np.arange(BINS) + 0.5) / BINS
    mean = inside @ levels / total
    variance = inside @ levels**2 / total - mean**2
    return {
        "contrast": float(np.median(np.sqrt(np.maximum(variance, 0.0)))),
        "crushed": float(np.median(inside[:, :_DARKEST].sum(axis=1) / total)),
        "blown": float(np.median(inside[:, _BRIGHTEST:].sum(axis=1) / total)),
    }


def bars(grey: np.ndarray, level: float) -> Bars | None:
    """The black lines around a picture `uint8 [H, W]`; None where it is black altogether.

    A line is black where all of it is dark, as in FFmpeg's `cropdetect`, and flat, so that a night
    sky is none.
    """
    rows, columns = (_black(grey, axis, level) for axis in (1, 0))
    if rows.all() or columns.all():
        return None
    return Bars(
        left=int(np.argmin(columns)) / len(columns),
        top=int(np.argmin(rows)) / len(rows),
        right=int(np.argmin(columns[::-1])) / len(columns),
        bottom=int(np.argmin(rows[::-1])) / len(rows),
    )


def refined(coarse: Bars, whole: np.ndarray, shape: tuple[int, ...], level: float) -> Bars:
    """Bars to the line, from a picture `uint8 [H, W]` of full size, where `coarse` are those of the
    reduced plane `shape`: only lines near a coarse edge are looked at."""
    lines = (whole.T, whole, whole.T[::-1], whole[::-1])
    num_coarse = (shape[1], shape[0], shape[1], shape[0])
    sides = []
    for share, side, count in zip(coarse, lines, num_coarse, strict=True):
        if share < _LEAST_BAR:
            sides.append(0.0)
            continue
        step = len(side) / count
        first = max(0, math.floor(share * len(side) - step))
        near = side[first : math.ceil(share * len(side) + 2 * step)]
        black = _black(near, 1, level)
        sides.append((first + (len(near) if black.all() else int(np.argmin(black)))) / len(side))
    return Bars(*sides)


def _black(grey: np.ndarray, axis: int, level: float) -> np.ndarray:
    brightest = grey.max(axis=axis)
    flat = brightest - grey.min(axis=axis) <= _FLAT
    return (brightest <= level) & flat


def common_bars(seen: np.ndarray) -> Bars | None:
    """Lines that are black in every picture that is not black altogether, where they are wide
    enough to be bars; None where that cannot be told.

    Args:
        seen: `float64 [samples, 4]` as in `Bars`, NaN for pictures that are black altogether.
    """
    known = seen[~np.isnan(seen[:, 0])]
    if not len(known):
        return None
    least = Bars(*known.min(axis=0).tolist())
    if least.left + least.right > _MOST_BARS or least.top + least.bottom > _MOST_BARS:
        return None
    return Bars(*(side if side >= _LEAST_BAR else 0.0 for side in least))
