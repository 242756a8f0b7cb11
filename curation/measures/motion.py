"""How much the picture moves, and what of it is the camera's doing.

Flow is measured between pictures a fixed time apart, not between neighbours: so a clip of 60, 30 or
15 frames a second gives the same pairs, and frames that repeat the one before do no harm.
"""

import math
from collections import deque
from typing import Any

import cv2
import numpy as np

from common.tape import Spill, Tape
from curation.config import AnalysisConfig
from curation.measures.base import Measure, Picture, Values, median
from curation.measures.camera import camera_move

_MOVES = {
    "pan": "pan",
    "tilt": "tilt",
    "zoom": "zoom",
    "roll_deg": "roll",
    "speed": "camera_speed",
}
"""What of a `Move` gives which score."""


class Motion(Measure):
    name = "motion"
    version = 2
    every_frame = True

    def __init__(self, config: AnalysisConfig, spill: Spill) -> None:
        super().__init__(config, spill)
        self._gap_us = round(config.motion_gap_s * 1e6)
        self._waiting: deque[tuple[int, np.ndarray, np.ndarray]] = deque()
        """Times, pictures and their steepness."""
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        self._tape = Tape(
            spill,
            ("to", np.int64),
            ("flow", np.float64),
            *((name, np.float64) for name in _MOVES),
        )
        """Of a sampled picture and one a little later: the time of that, the mean length of the
        flow in diagonals per second, and what of `Move` is told of the camera, else NaN."""

    @classmethod
    def params(cls, config: AnalysisConfig) -> dict[str, Any]:
        return {"samples_per_s": config.samples_per_s, "gap_s": config.motion_gap_s}

    def feed(self, picture: Picture, sampled: bool) -> None:
        pts_us, grey = picture.pts_us, picture.grey
        while self._waiting and pts_us - self._waiting[0][0] >= self._gap_us:
            self._compare(*self._waiting.popleft(), pts_us, grey)
        if sampled:
            self._waiting.append((pts_us, grey, picture.steepness))

    def interrupt(self) -> None:
        self._waiting.clear()

    def over(self, start_us: int, end_us: int) -> Values:
        """Medians over the pairs that lie wholly inside, so that what shakes to and fro has no
        direction. The camera's are known where most pairs tell of it."""
        pairs = self._tape.between(start_us, end_us)
        pairs = pairs[pairs["to"] < end_us]
        moves = pairs[~np.isnan(pairs["pan"])]
        if 2 * len(moves) < len(pairs):
            moves = moves[:0]
        return {
            "motion": median(pairs["flow"]),
            **{score: median(moves[name]) for name, score in _MOVES.items()},
        }

    def _compare(
        self, from_us: int, before: np.ndarray, steepness: np.ndarray, to_us: int, now: np.ndarray
    ) -> None:
        seconds = (to_us - from_us) / 1e6
        flow = self._flow.calc(before, now, np.zeros((*now.shape, 2), np.float32))
        length = float(cv2.magnitude(flow[..., 0], flow[..., 1]).mean())
        move = camera_move(flow, steepness, seconds)
        self._tape.append(
            from_us,
            to_us,
            length / math.hypot(*now.shape) / seconds,
            *(math.nan if move is None else getattr(move, name) for name in _MOVES),
        )
