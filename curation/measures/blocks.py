"""Traces of the codec: borders of blocks."""

import cv2
import numpy as np

from common.tape import Spill, Tape
from curation.config import AnalysisConfig
from curation.measures.base import Measure, Picture, Values, median

_BLOCK = 8
_LINES = 48
_LEAST_STEP = 0.2
"""Levels: smaller steps are rounding."""


class Blocks(Measure):
    name = "blocks"

    def __init__(self, config: AnalysisConfig, spill: Spill) -> None:
        super().__init__(config, spill)
        self._tape = Tape(spill, ("ratio", np.float64))

    def feed(self, picture: Picture, sampled: bool) -> None:
        coded = picture.coded() if sampled else None
        found = None if coded is None else blockiness(coded)
        if found is not None:
            self._tape.append(picture.pts_us, found)

    def over(self, start_us: int, end_us: int) -> Values:
        return {"blockiness": median(self._tape.between(start_us, end_us)["ratio"])}


def blockiness(luma: np.ndarray) -> float | None:
    """Steps at the borders of 8 x 8 blocks over steps inside them; 1 is none, blocks give more.

    Mean absolute differences of neighbours across block borders and within blocks, as in Wang,
    Sheikh and Bovik 2002 ("No-reference perceptual quality assessment of JPEG compressed images"),
    taken as a ratio, so that contrast cancels. The grid need not begin at the corner: its place is
    where the steps are largest, and the others' median stands for the inside. Measured on the
    picture as it was coded, hence of coded pixels: 48 lines each way. None where the picture is
    too small, or has no steps at all.

    Args:
        luma: `[H, W]` of any unsigned type.
    """
    height, width = luma.shape
    if min(height, width) < 4 * _BLOCK:
        return None
    rows = luma[_spread(height)]
    columns = np.ascontiguousarray(luma[:, _spread(width)].T)
    ratios = [r for r in (_at_borders(rows), _at_borders(columns)) if r is not None]
    return float(np.mean(ratios)) if ratios else None


def _spread(length: int) -> np.ndarray:
    return np.linspace(0, length - 1, min(_LINES, length)).astype(np.intp)


def _at_borders(lines: np.ndarray) -> float | None:
    steps = cv2.absdiff(lines[:, 1:], lines[:, :-1]).sum(axis=0, dtype=np.uint32) / len(lines)
    whole = len(steps) // _BLOCK * _BLOCK
    # The median over the blocks, since one edge of the picture may well lie on their border.
    places = np.median(steps[:whole].reshape(-1, _BLOCK), axis=0)
    inside = float(np.median(places))
    return float(places.max()) / inside if inside > _LEAST_STEP else None
