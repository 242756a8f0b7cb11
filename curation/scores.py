"""Scores of a clip from its reduced frames, all from the one analysis decode.

All are independent of codec, frame rate and resolution as far as the reduced picture allows, but
for `blockiness` and `bits_per_pixel`, which tell of the coding. Lengths are fractions of the
picture's diagonal, rates are per second, shares are 0 to 1.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import cv2
import numpy as np

from curation.measures.camera import Move, camera_move
from curation.measures.changes import FrameLog
from curation.measures.stills import Bars, bars, blockiness, common_bars, exposure, histogram

Row = TypeVar("Row", bound=tuple[Any, ...])
UNITS = {
    "blur": "squared frequency of edges; low is blurred",
    "motion": "diagonals/s",
    "luma": "0 to 255",
    "contrast": "RMS, share of the range",
    "crushed": "share of the picture",
    "blown": "share of the picture",
    "letterbox": "share of the picture",
    "freeze_s": "s",
    "freeze": "share of the time",
    "slideshow": "share of the time",
    "duplicate_frames": "share of the frames",
    "flashes": "1/s",
    "jitter": "diagonals",
    "pan": "diagonals/s, to the right",
    "tilt": "diagonals/s, up",
    "zoom": "1/s, in",
    "roll": "degrees/s, clockwise",
    "camera_speed": "diagonals/s",
    "blockiness": "steps at block borders over steps inside",
    "bits_per_pixel": "bits",
}
"""Every score and its unit."""
SCORES = tuple(UNITS)
Crop = tuple[int, int, int, int]
"""(left, top, width, height)"""


class Score(NamedTuple):
    """`value` means something only where `valid`; a clip without a pair of frames has no motion,
    which is not the same as motion 0."""

    value: float
    valid: bool


class Still(NamedTuple):
    """What one sampled picture gave."""

    pts_us: int
    sharpness: float | None
    luma: float
    histogram: np.ndarray
    bars: Bars | None
    blockiness: float | None


class Pair(NamedTuple):
    """What a sampled picture and the next one gave."""

    pts_us: int
    to_us: int
    speed: float
    move: Move | None


class FrameScorer:
    """Measures frames while they pass; keeps numbers only, never pictures."""

    def __init__(self, samples_per_s: float) -> None:
        self._period_us = round(1e6 / samples_per_s)
        self._next_us = 0
        self._before: tuple[int, np.ndarray, np.ndarray] | None = None
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        self._size = (0, 0)
        self._stills: list[Still] = []
        self._pairs: list[Pair] = []
        self._log = FrameLog()

    def feed(
        self,
        pts_us: int,
        grey: np.ndarray,
        luma: Callable[[], np.ndarray | None] = lambda: None,
    ) -> bool:
        """Takes the next frame; says whether it was sampled.

        Args:
            grey: `uint8 [H, W]`, brightness of full range on the reduced plane.
            luma: gives the brightness as it was coded, where the format has one.
        """
        self._log.feed(pts_us, grey)
        if self._before is not None:
            self._pairs.append(self._pair(*self._before, pts_us, grey))
            self._before = None
        if pts_us < self._next_us:
            return False
        slope = gradient(grey)
        coded = luma()
        self._stills.append(
            Still(
                pts_us=pts_us,
                sharpness=sharpness(grey, slope),
                luma=float(grey.mean()),
                histogram=histogram(grey),
                bars=bars(grey),
                blockiness=None if coded is None else blockiness(coded),
            )
        )
        self._size = (grey.shape[1], grey.shape[0])
        self._before = (pts_us, grey, slope)
        self._next_us = (pts_us // self._period_us + 1) * self._period_us
        return True

    def interrupt(self) -> None:
        """Footage is missing here: nothing is measured across the hole."""
        self._before = None
        self._log.interrupt()

    def over(self, start_us: int, end_us: int) -> dict[str, Score]:
        """The scores of a clip, all but `bits_per_pixel`: of sampled ones medians over the samples
        that lie wholly in it."""
        stills = within(self._stills, start_us, end_us)
        pairs = [p for p in within(self._pairs, start_us, end_us) if p.to_us < end_us]
        moves = [p.move for p in pairs if p.move is not None]
        return {
            "blur": _median([s.sharpness for s in stills if s.sharpness is not None]),
            "motion": _median([p.speed for p in pairs]),
            "luma": _median([s.luma for s in stills]),
            **self._light(stills),
            **{n: as_score(v) for n, v in self._log.stillness(start_us, end_us).items()},
            "flashes": as_score(self._log.flashes(start_us, end_us)),
            "jitter": as_score(self._log.jitter(start_us, end_us)),
            **_camera(moves if 2 * len(moves) >= len(pairs) else []),
            "blockiness": _median([s.blockiness for s in stills if s.blockiness is not None]),
        }

    def crop(self, start_us: int, end_us: int, width: int, height: int) -> Crop | None:
        """What of the clip's pictures is inside its black bars, in pixels of the source; None
        where that cannot be told. Lines that bar and picture share are left out.

        Args:
            width, height: of the source as displayed.
        """
        found = self._bars(within(self._stills, start_us, end_us))
        if found is None:
            return None
        across, down = width / self._size[0], height / self._size[1]
        left, right = (math.ceil((n + 1) * across) if n else 0 for n in (found.left, found.right))
        top, bottom = (math.ceil((n + 1) * down) if n else 0 for n in (found.top, found.bottom))
        return left, top, max(1, width - left - right), max(1, height - top - bottom)

    def _bars(self, stills: Sequence[Still]) -> Bars | None:
        return common_bars([still.bars for still in stills], *self._size)

    def _light(self, stills: Sequence[Still]) -> dict[str, Score]:
        names = ("contrast", "crushed", "blown", "letterbox")
        if not stills:
            return dict.fromkeys(names, as_score(None))
        found = self._bars(stills)
        width, height = self._size
        share = None
        if found is not None:
            inner = (width - found.left - found.right) * (height - found.top - found.bottom)
            share = 1 - inner / (width * height)
        num_black = (share or 0.0) * width * height
        values = exposure(np.stack([still.histogram for still in stills]), num_black)
        return {n: as_score(v) for n, v in values.items()} | {"letterbox": as_score(share)}

    def _pair(
        self, from_us: int, before: np.ndarray, slope: np.ndarray, to_us: int, now: np.ndarray
    ) -> Pair:
        """Mean flow between two adjacent frames, and what the camera has to do with it."""
        seconds = (to_us - from_us) / 1e6
        flow = self._flow.calc(before, now, np.zeros((*now.shape, 2), np.float32))
        length = float(cv2.magnitude(flow[..., 0], flow[..., 1]).mean())
        return Pair(
            pts_us=from_us,
            to_us=to_us,
            speed=length / math.hypot(*now.shape) / seconds,
            move=camera_move(flow, slope, seconds),
        )


def as_score(value: float | None) -> Score:
    """Rounded as scores are stored; None is not valid."""
    if value is None:
        return Score(value=0.0, valid=False)
    return Score(value=round(value, 6), valid=True)


def _camera(moves: Sequence[Move]) -> dict[str, Score]:
    """Medians, so that what shakes to and fro stands still."""
    return {
        "pan": _median([move.pan for move in moves]),
        "tilt": _median([move.tilt for move in moves]),
        "zoom": _median([move.zoom for move in moves]),
        "roll": _median([move.roll_deg for move in moves]),
        "camera_speed": _median([move.speed for move in moves]),
    }


def within(rows: list[Row], start_us: int, end_us: int) -> list[Row]:
    """The rows that begin inside a span; they are in order of time."""
    first = bisect_left(rows, start_us, key=lambda row: row[0])
    return rows[first : bisect_left(rows, end_us, lo=first, key=lambda row: row[0])]


def gradient(grey: np.ndarray) -> np.ndarray:
    """`float32 [H, W]`: squared slope of `uint8 [H, W]`, grey levels squared per pixel squared."""
    across = cv2.Sobel(grey, cv2.CV_32F, 1, 0, scale=1 / 8)
    down = cv2.Sobel(grey, cv2.CV_32F, 0, 1, scale=1 / 8)
    return across * across + down * down


def sharpness(grey: np.ndarray, slope: np.ndarray) -> float | None:
    """Variance of the Laplacian over the mean squared gradient; low is blurred.

    The variance of the Laplacian alone (Pech-Pacheco et al. 2000) follows contrast and texture as
    much as focus: a night sky counts as blurred and a blocky picture as sharp. Divided by the
    energy of the first derivative, what is left is the mean squared spatial frequency of the
    edges. None where the picture has no edges to judge by.

    Args:
        grey: `uint8 [H, W]` on the fixed plane, because the value depends on scale.
        slope: its `gradient`.
    """
    energy = float(slope.mean()) - _SLOPE_OF_ROUNDING
    if energy < _LEAST_SLOPE:
        return None
    bend = float(cv2.Laplacian(grey, cv2.CV_32F).var()) - _BEND_OF_ROUNDING
    return max(0.0, bend) / energy


# Rounding to whole grey levels is noise of variance 1/12; a filter multiplies it by the sum of its
# squared weights. Left in, it would make the smoothest pictures the sharpest.
_BEND_OF_ROUNDING = (4**2 + 4 * 1**2) / 12
_SLOPE_OF_ROUNDING = 2 * (4 * 1**2 + 2 * 2**2) / 8**2 / 12
_LEAST_SLOPE = 0.1
"""Grey levels squared per pixel squared: below it there are no edges to judge by."""


def _median(values: list[float]) -> Score:
    return as_score(float(np.median(values)) if values else None)
