"""Shaking of the picture."""

import functools
import math
from typing import Any

import cv2
import numpy as np

from common.tape import Spill, Tape
from curation.config import AnalysisConfig
from curation.measures.base import Measure, Picture, Values

_GAP_US = 30_000
_RATE = 30
_SLOWEST_US = 60_000
"""Steps of a path that shows what happens several times a second; sparser ones hide it."""
_LEAST_S = 0.8


class Jitter(Measure):
    name = "jitter"
    version = 2
    every_frame = True

    def __init__(self, config: AnalysisConfig, spill: Spill) -> None:
        super().__init__(config, spill)
        self._half = max(2, round(config.jitter_window_s * _RATE / 2))
        self._tape = Tape(spill, ("step", np.float32, (2,)))
        """Movement (right, down) of the picture since the path's time before, in diagonals."""
        self._before: tuple[int, np.ndarray] | None = None
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        self._flow.setFinestScale(1)  # the plane is small already

    @classmethod
    def params(cls, config: AnalysisConfig) -> dict[str, Any]:
        return {"window_s": config.jitter_window_s}

    def feed(self, picture: Picture, sampled: bool) -> None:
        """The middle of the flow: what most of the picture does, not what moves in it."""
        if self._before is not None and picture.pts_us - self._before[0] < _GAP_US:
            return
        small, shape = picture.tiny, picture.grey.shape
        step = (math.nan, math.nan)
        if self._before is not None:
            flow = self._flow.calc(self._before[1], small, np.zeros((*small.shape, 2), "f4"))
            right, down = np.median(flow[2::4, 2::4].reshape(-1, 2), axis=0).tolist()
            # The small plane is stretched to its shape; the steps are not.
            diagonal = math.hypot(*shape)
            across, along = shape[1] / small.shape[1], shape[0] / small.shape[0]
            step = (right * across / diagonal, down * along / diagonal)
        self._tape.append(picture.pts_us, step)
        self._before = (picture.pts_us, small)

    def interrupt(self) -> None:
        self._before = None

    def over(self, start_us: int, end_us: int) -> Values:
        """How far the picture is off its smooth course, in diagonals: the median.

        The path is the sum of the movements between frames, at most 33 a second. Its course is a
        parabola over a third of a second around (Savitzky and Golay 1964), which lets through what
        is slower than some 5 Hz: pans, also beginning and ending ones, steps and the sway of a
        hand are no jitter, what trembles and jumps to and fro is. Cf. Liu et al. 2013, "Bundled
        camera paths", who compare the low and the high frequencies of such a path. The median, so
        that one jolt does not make a clip shaky. None under 0.8 seconds, and under some 17 frames
        a second.
        """
        rows = self._tape.between(start_us, end_us)
        steps, times = rows["step"][1:], rows["at"] / 1e6
        long = len(rows) > 2 and times[-1] - times[0] >= _LEAST_S
        if not long or np.median(np.diff(times)) * 1e6 > _SLOWEST_US or np.isnan(steps).any():
            return {"jitter": None}
        path = np.concatenate([np.zeros((1, 2)), np.cumsum(steps, axis=0, dtype=np.float64)])
        even = np.arange(times[0], times[-1], 1 / _RATE)
        half, course = self._half, _course(self._half)
        apart = []
        for axis in (0, 1):
            line = np.interp(even, times, path[:, axis])
            apart.append(line[half:-half] - np.convolve(line, course, "valid"))
        return {"jitter": float(np.median(np.hypot(*apart)))}


@functools.cache
def _course(half: int) -> np.ndarray:
    """Savitzky and Golay's weights of a parabola's middle over `2 half + 1` points."""
    at = np.arange(-half, half + 1)
    return np.linalg.pinv(np.vander(at, 3))[-1]
