"""Scores of a clip from samples of its reduced frames.

All are independent of codec, frame rate and resolution as far as the reduced picture allows:
brightness from 0 to 255, motion as a fraction of the picture's diagonal per second.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, TypeVar

import cv2
import numpy as np

Row = TypeVar("Row", bound=tuple[Any, ...])
SCORES = ("blur", "motion", "luma")


@dataclass(frozen=True, kw_only=True)
class Score:
    """`value` means something only where `valid`; a clip without a pair of frames has no motion,
    which is not the same as motion 0."""

    value: float
    valid: bool


class FrameScorer:
    """Measures sampled frames while they pass; keeps numbers only, never pictures."""

    def __init__(self, samples_per_s: float) -> None:
        self._period_us = round(1e6 / samples_per_s)
        self._next_us = 0
        self._before: tuple[int, np.ndarray] | None = None
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        self._stills: list[tuple[int, float | None, float]] = []
        self._pairs: list[tuple[int, int, float]] = []

    def feed(self, pts_us: int, bgr: np.ndarray) -> bool:
        """Takes the next frame; says whether it was sampled."""
        sampled = pts_us >= self._next_us
        if not sampled and self._before is None:
            return False
        grey = cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY)
        if self._before is not None:
            self._pairs.append((self._before[0], pts_us, self._speed(*self._before, pts_us, grey)))
            self._before = None
        if sampled:
            self._stills.append((pts_us, sharpness(grey), float(grey.mean())))
            self._before = (pts_us, grey)
            self._next_us = (pts_us // self._period_us + 1) * self._period_us
        return sampled

    def interrupt(self) -> None:
        """Footage is missing here: no motion is measured across the hole."""
        self._before = None

    def over(self, start_us: int, end_us: int) -> dict[str, Score]:
        """The scores of a clip: medians over the samples that lie wholly in it."""
        stills = within(self._stills, start_us, end_us)
        speeds = [p[2] for p in within(self._pairs, start_us, end_us) if p[1] < end_us]
        return {
            "blur": _median([still[1] for still in stills if still[1] is not None]),
            "motion": _median(speeds),
            "luma": _median([still[2] for still in stills]),
        }

    def _speed(self, from_us: int, before: np.ndarray, to_us: int, now: np.ndarray) -> float:
        """Mean flow between two adjacent frames, in diagonals per second."""
        flow = self._flow.calc(before, now, np.zeros((*now.shape, 2), np.float32))
        length = cv2.magnitude(flow[..., 0], flow[..., 1]).mean()
        return float(length) / math.hypot(*now.shape) / ((to_us - from_us) / 1e6)


def within(rows: list[Row], start_us: int, end_us: int) -> list[Row]:
    """The rows that begin inside a span; they are in order of time."""
    first = bisect_left(rows, start_us, key=lambda row: row[0])
    return rows[first : bisect_left(rows, end_us, lo=first, key=lambda row: row[0])]


def sharpness(grey: np.ndarray) -> float | None:
    """Variance of the Laplacian over the mean squared gradient; low is blurred.

    The variance of the Laplacian alone (Pech-Pacheco et al. 2000) follows contrast and texture as
    much as focus: a night sky counts as blurred and a blocky picture as sharp. Divided by the
    energy of the first derivative, what is left is the mean squared spatial frequency of the
    edges. None where the picture has no edges to judge by.

    Args:
        grey: `uint8 [H, W]` on the fixed plane, because the value depends on scale.
    """
    across = cv2.Sobel(grey, cv2.CV_32F, 1, 0, scale=1 / 8)
    down = cv2.Sobel(grey, cv2.CV_32F, 0, 1, scale=1 / 8)
    slope = float((across * across + down * down).mean()) - _SLOPE_OF_ROUNDING
    if slope < _LEAST_SLOPE:
        return None
    bend = float(cv2.Laplacian(grey, cv2.CV_32F).var()) - _BEND_OF_ROUNDING
    return max(0.0, bend) / slope


# Rounding to whole grey levels is noise of variance 1/12; a filter multiplies it by the sum of its
# squared weights. Left in, it would make the smoothest pictures the sharpest.
_BEND_OF_ROUNDING = (4**2 + 4 * 1**2) / 12
_SLOPE_OF_ROUNDING = 2 * (4 * 1**2 + 2 * 2**2) / 8**2 / 12
_LEAST_SLOPE = 0.1
"""Grey levels squared per pixel squared: below it there are no edges to judge by."""


def _median(values: list[float]) -> Score:
    if not values:
        return Score(value=0.0, valid=False)
    return Score(value=round(float(np.median(values)), 6), valid=True)
