"""Neighbouring shots that show one scene are joined again, by what the ends look like.

The rule is that of Panda-70M (Chen et al., 2024, arXiv:2402.19479): two shots are one where the
embedding of the last picture of one is nearer to that of the first picture of the next than a
limit. Theirs is of ImageBind; the default needs no weights and sees the layout of colours and of
edges, so it joins what a flash, a fast pan or a false alarm has cut, not two views of a place.
"""

import cv2
import numpy as np

from common.tape import Spill, Tape
from curation.shots.embedders import Embed
from curation.shots.finder import Boundary, ShotFinder

_SIZE = (80, 48)
_CELLS = 4
_BINS = 8
_EVERY_US = 200_000
_REACH_US = 700_000
"""How far from a boundary a picture may lie and still stand for its end of the shot."""


class StitchingFinder:
    """Takes back cuts of another finder; gradual transitions stay, since their pictures belong to
    neither side. Keeps an embedding every fifth of a second, on disk."""

    def __init__(self, finder: ShotFinder, max_distance: float, embed: Embed, spill: Spill) -> None:
        self._embed = embed
        self._finder = finder
        self._max_distance = max_distance
        self._spill = spill
        self._tape: Tape | None = None
        self._last_us = 0

    def feed(self, pts_us: int, bgr: np.ndarray, grey: np.ndarray) -> None:
        self._finder.feed(pts_us, bgr, grey)
        if self._tape is None or pts_us - self._last_us >= _EVERY_US:
            embedding = self._embed(bgr).astype(np.float16)
            if self._tape is None:
                self._tape = Tape(self._spill, ("embedding", np.float16, embedding.shape))
            self._tape.append(pts_us, embedding)
            self._last_us = pts_us

    def interrupt(self) -> None:
        self._finder.interrupt()

    def boundaries(self) -> list[Boundary]:
        return [b for b in self._finder.boundaries() if b[0] != b[1] or not self._same(b[0])]

    def _same(self, at_us: int) -> bool:
        """The nearest pair across a boundary decides, so that a flash at it does not."""
        if self._tape is None:
            return False
        before = self._tape.between(at_us - _REACH_US, at_us)["embedding"]
        after = self._tape.between(at_us, at_us + _REACH_US + 1)["embedding"]
        if not len(before) or not len(after):
            return False
        one, other = before.astype(np.float32), after.astype(np.float32)
        nearest = np.linalg.norm(one[:, None] - other[None], axis=-1).min()
        return bool(nearest <= self._max_distance)


def layout_embedding(bgr: np.ndarray) -> np.ndarray:
    """`float32 [176]` of unit length, of a picture `uint8 [H, W, 3]`.

    Half of it is where colours lie: means of 4 x 4 cells, as in MPEG-7's colour layout, less those
    of the whole. Half is where edges point: histograms of unsigned gradients in the same cells, as
    in HOG (Dalal and Triggs, 2005). Distances go from 0 to 2.
    """
    small = cv2.resize(bgr, _SIZE, interpolation=cv2.INTER_AREA).astype(np.float32)
    colours = _cells(small)
    grey = small.mean(2)
    across = cv2.Sobel(grey, cv2.CV_32F, 1, 0)
    down = cv2.Sobel(grey, cv2.CV_32F, 0, 1)
    strength = np.hypot(across, down)
    turn = (np.arctan2(down, across) % np.pi) / np.pi * _BINS
    bins = turn.astype(int) % _BINS
    layers = strength[..., None] * (bins[..., None] == np.arange(_BINS))
    edges = _cells(layers)
    halves = [_unit(colours), _unit(edges)]
    return np.concatenate(halves) / np.sqrt(2)


def _cells(values: np.ndarray) -> np.ndarray:
    """Means of the cells of `[H, W, C]`, less that of all, flat."""
    height, width, channels = values.shape
    cells = values.reshape(_CELLS, height // _CELLS, _CELLS, width // _CELLS, channels)
    means = cells.mean((1, 3))
    return (means - means.mean((0, 1))).ravel()


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / (np.linalg.norm(vector) + 1e-3)
