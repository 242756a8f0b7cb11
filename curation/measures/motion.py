"""How much the picture moves, and what of it is the camera's doing.

Flow is measured between pictures a fixed time apart, not between neighbours: so a clip of 60, 30 or
15 frames a second gives the same pairs, and frames that repeat the one before do no harm.
"""

import math
from collections import deque
from typing import Any, NamedTuple

import cv2
import numpy as np

from curation.config import AnalysisConfig
from curation.measures.base import Measure, Picture, Values, median, within
from curation.measures.camera import Move, camera_move


class Pair(NamedTuple):
    """What a sampled picture and one a little later gave."""

    pts_us: int
    to_us: int
    speed: float
    """Mean length of the flow, diagonals per second."""
    move: Move | None


class Motion(Measure):
    name = "motion"
    version = 2
    every_frame = True

    def __init__(self, config: AnalysisConfig) -> None:
        super().__init__(config)
        self._gap_us = round(config.motion_gap_s * 1e6)
        self._waiting: deque[tuple[int, np.ndarray, np.ndarray]] = deque()
        """Times, pictures and their steepness."""
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        self._pairs: list[Pair] = []

    @classmethod
    def params(cls, config: AnalysisConfig) -> dict[str, Any]:
        return {"samples_per_s": config.samples_per_s, "gap_s": config.motion_gap_s}

    def feed(self, picture: Picture, sampled: bool) -> None:
        pts_us, grey = picture.pts_us, picture.grey
        while self._waiting and pts_us - self._waiting[0][0] >= self._gap_us:
            self._pairs.append(self._pair(*self._waiting.popleft(), pts_us, grey))
        if sampled:
            self._waiting.append((pts_us, grey, picture.steepness))

    def interrupt(self) -> None:
        self._waiting.clear()

    def over(self, start_us: int, end_us: int) -> Values:
        """Medians over the pairs that lie wholly inside, so that what shakes to and fro has no
        direction. The camera's are known where most pairs tell of it."""
        pairs = [p for p in within(self._pairs, start_us, end_us) if p.to_us < end_us]
        moves = [p.move for p in pairs if p.move is not None]
        if 2 * len(moves) < len(pairs):
            moves = []
        return {
            "motion": median([p.speed for p in pairs]),
            "pan": median([move.pan for move in moves]),
            "tilt": median([move.tilt for move in moves]),
            "zoom": median([move.zoom for move in moves]),
            "roll": median([move.roll_deg for move in moves]),
            "camera_speed": median([move.speed for move in moves]),
        }

    def _pair(
        self, from_us: int, before: np.ndarray, steepness: np.ndarray, to_us: int, now: np.ndarray
    ) -> Pair:
        seconds = (to_us - from_us) / 1e6
        flow = self._flow.calc(before, now, np.zeros((*now.shape, 2), np.float32))
        length = float(cv2.magnitude(flow[..., 0], flow[..., 1]).mean())
        return Pair(
            pts_us=from_us,
            to_us=to_us,
            speed=length / math.hypot(*now.shape) / seconds,
            move=camera_move(flow, steepness, seconds),
        )
