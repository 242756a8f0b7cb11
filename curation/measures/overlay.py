"""What lies over a picture and stays in its place while the picture changes: text, logos.

The cheap test comes first: strokes whose gradient is the same, in size and direction, over three
quarters of a second. In footage that moves, nothing but an overlay has them, so most pictures never
reach the text detector.
"""

import math
from collections import deque
from typing import Any

import cv2
import numpy as np

from common.tape import Spill, Tape
from curation.config import AnalysisConfig
from curation.measures.base import Measure, Picture, Schedule, Values, median
from curation.measures.text import detector, model_name

_PER_S = 4
_HELD_US = 700_000
"""For how long strokes must stay."""
_FORGET_US = 1_300_000
_STROKE = 64.0
"""Squared gradient, grey levels per pixel, from which on there is a stroke."""
_SAME = 0.1
"""Squared change of the gradient, of its square, up to which a stroke has stayed."""
_AROUND = (31, 9)
"""(width, height) in pixels of the plane: about a word."""
_DENSE = 0.15
_GATE = 0.01
"""Share of the picture with dense strokes that stay, from which on text is looked for."""
_GRID = (64, 36)
_NOTHING = np.zeros(_GRID[0] * _GRID[1] // 8, np.uint8)
"""A grid of bits without a cell."""
_MOST_OF_TIME = 0.75
_ALWAYS = 0.9
_CORNER = 0.3
"""Of each side: where logos stand."""
_STANDING = 0.5
"""Share of strokes that stay, from which on the picture itself stands and hides what lies on it."""
_MOVING = 0.25
"""Share of the strokes beside the text that stay, up to which the picture moves under it."""
_BESIDE = np.ones((9, 9), np.uint8)
"""By how far text is left out where the picture beside it is looked at."""
_LEAST_STROKES = 0.005
"""Of the picture beside the text; fewer tell nothing."""
_SOME_TEXT = 0.01


class Overlay(Measure):
    name = "overlay"
    version = 2
    every_frame = True

    def __init__(self, config: AnalysisConfig, spill: Spill) -> None:
        super().__init__(config, spill)
        self._schedule = Schedule(_PER_S)
        self._seen: deque[tuple[int, np.ndarray, np.ndarray]] = deque()
        """Times and gradients of the last second."""
        self._looks = Tape(
            spill,
            ("to", np.int64),
            ("strokes", np.uint8, (len(_NOTHING),)),
            ("text", np.uint8, (len(_NOTHING),)),
            ("standing", np.float64),
            ("beside", np.float64),
        )
        """What stayed until another time: where strokes stay and where text stands, a bit for each
        cell of a grid; of all strokes and of those beside text the share that stays, NaN where
        there are too few."""
        self._found: tuple[int, np.ndarray] | None = None
        """When text was last looked for, and where it stood: `uint8 [H, W]` of 0 and 1."""
        self._last_us = -_HELD_US

    @classmethod
    def params(cls, config: AnalysisConfig) -> dict[str, Any]:
        return {"detector": model_name() if config.text else None}

    def feed(self, picture: Picture, sampled: bool) -> None:
        pts_us = picture.pts_us
        if not self._schedule.due(pts_us):
            return
        while self._seen and pts_us - self._seen[0][0] > _FORGET_US:
            self._seen.popleft()
        old = [row for row in self._seen if pts_us - row[0] >= _HELD_US]
        # Looks may overlap, but not by more than half.
        if old and pts_us - self._last_us >= _HELD_US // 2:
            self._last_us = pts_us
            self._look(picture, old[-1])
        self._seen.append((pts_us, *picture.slopes))

    def interrupt(self) -> None:
        self._seen.clear()

    def _look(self, picture: Picture, oldest: tuple[int, np.ndarray, np.ndarray]) -> None:
        strokes = picture.steepness > _STROKE
        kept = strokes.copy()
        for at_us, across, down in self._seen:
            if at_us >= oldest[0]:
                change = (picture.slopes[0] - across) ** 2 + (picture.slopes[1] - down) ** 2
                kept &= change < _SAME * picture.steepness
        density = cv2.boxFilter(kept.astype(np.float32), -1, _AROUND)
        dense = (density > _DENSE).astype(np.uint8)
        num = int(strokes.sum())
        text = self._text(picture, oldest[0], float(dense.mean()))
        self._looks.append(
            oldest[0],
            picture.pts_us,
            _packed(dense),
            _NOTHING if text is None else _packed(text),
            float(kept.sum()) / num if num else math.nan,
            _share_beside(kept, strokes, text),
        )

    def _text(self, picture: Picture, since_us: int, share: float) -> np.ndarray | None:
        """Where text stands; None where it was not looked for."""
        finder = detector() if self._config.text else None
        if finder is None or share < _GATE:
            return None
        if self._found is None or self._found[0] < since_us:
            self._found = (picture.pts_us, finder.find(picture.bgr))
        return self._found[1]

    def over(self, start_us: int, end_us: int) -> Values:
        """`text_overlay`: share of the picture under text that stands there for three quarters of
        the time; `text_moving`: the same where the picture beside the text moves, not told of
        others; `text_time`: share of the time in which text stays anywhere; `logo`: share of the
        picture where strokes stay throughout in its corners, not told of a picture that stands
        still itself. All None under 0.7 seconds."""
        looks = self._looks.between(start_us, end_us)
        looks = looks[looks["to"] < end_us]
        values: Values = dict.fromkeys(("text_overlay", "text_moving", "text_time", "logo"))
        if not len(looks):
            return values
        if self._config.text and detector() is not None:
            texts = _unpacked(looks["text"])
            presence = texts.mean(axis=0)
            values["text_overlay"] = float(np.mean(presence >= _MOST_OF_TIME))
            beside = median(looks["beside"][~np.isnan(looks["beside"])])
            if beside is not None and beside < _MOVING:
                values["text_moving"] = values["text_overlay"]
            values["text_time"] = float(np.mean(texts.mean(axis=(1, 2)) >= _SOME_TEXT))
        standing = median(looks["standing"][~np.isnan(looks["standing"])])
        if standing is None or standing < _STANDING:
            strokes = _unpacked(looks["strokes"]).mean(axis=0)
            values["logo"] = float(np.mean((strokes >= _ALWAYS) & _CORNERS))
        return values


def _share_beside(kept: np.ndarray, strokes: np.ndarray, text: np.ndarray | None) -> float:
    """Of the strokes beside the text, how many stay. What a text itself adds would make a picture
    that runs beneath it look still."""
    if text is not None:
        strokes = strokes & (cv2.dilate(text, _BESIDE) == 0)
    num = int(strokes.sum())
    return float((kept & strokes).sum()) / num if num >= _LEAST_STROKES * strokes.size else math.nan


def _packed(mask: np.ndarray) -> np.ndarray:
    """`uint8 [H, W]` of 0 and 1 as bits: the cells of a grid that are at least half covered."""
    cells = cv2.resize(mask * np.uint8(255), _GRID, interpolation=cv2.INTER_AREA) >= 128
    return np.packbits(cells)


def _unpacked(cells: np.ndarray) -> np.ndarray:
    """`bool [n, H, W]` of `uint8 [n, bytes]`."""
    return np.unpackbits(cells, axis=1).reshape(-1, *_GRID[::-1]).astype(bool)


def _corners() -> np.ndarray:
    across = np.abs((np.arange(_GRID[0]) + 0.5) / _GRID[0] - 0.5) > 0.5 - _CORNER
    down = np.abs((np.arange(_GRID[1]) + 0.5) / _GRID[1] - 0.5) > 0.5 - _CORNER
    return down[:, None] & across[None, :]


_CORNERS = _corners()
