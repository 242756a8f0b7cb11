"""Measures of single pictures: how the light lies in them, black bars, and traces of the codec."""

from dataclasses import dataclass

import cv2
import numpy as np

BINS = 64
_DARKEST, _BRIGHTEST = 2, BINS - 2
"""Bins of four grey levels each: below 8 of 255 is crushed, from 248 on is blown."""
_BLACK = 24
"""Grey level up to which a line may be a bar; that of FFmpeg's `cropdetect`."""
_FLAT = 12
"""Grey levels within which all of a bar's line lies; the dark of a picture varies more."""
_LEAST_BAR = 0.02
_MOST_BARS = 0.9
"""Of a side: less is the edge of a picture, more a picture too dark to tell."""
_BLOCK = 8
_LINES = 48
_LEAST_STEP = 0.2
"""Levels: smaller steps are rounding."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Black lines at the four edges of a picture, counted on the reduced plane."""

    left: int
    top: int
    right: int
    bottom: int


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


def bars(grey: np.ndarray) -> Bars | None:
    """The black lines around a picture; None where it is black altogether.

    A line is black where all of it is dark, as in FFmpeg's `cropdetect`, and flat, so that a night
    sky is none.
    """
    dark = []
    for axis in (1, 0):
        brightest = grey.max(axis=axis)
        flat = brightest - grey.min(axis=axis) <= _FLAT
        dark.append((brightest <= _BLACK) & flat)
    rows, columns = dark
    if rows.all() or columns.all():
        return None
    return Bars(
        left=int(np.argmin(columns)),
        top=int(np.argmin(rows)),
        right=int(np.argmin(columns[::-1])),
        bottom=int(np.argmin(rows[::-1])),
    )


def common_bars(seen: list[Bars | None], width: int, height: int) -> Bars | None:
    """Lines that are black in every picture that is not black altogether, where they are wide
    enough to be bars; None where that cannot be told.

    Args:
        width, height: of the reduced plane.
    """
    known = [b for b in seen if b is not None]
    if not known:
        return None
    sides = {}
    for names, length in ((("left", "right"), width), (("top", "bottom"), height)):
        lines = {name: min(getattr(b, name) for b in known) for name in names}
        if sum(lines.values()) > _MOST_BARS * length:
            return None
        sides |= {n: count if count >= _LEAST_BAR * length else 0 for n, count in lines.items()}
    return Bars(**sides)


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
