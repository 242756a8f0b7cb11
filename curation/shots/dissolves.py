"""Cross-fades and fades to black, found by the model of how they are made.

A dissolve from A to B is a blend, `x(tau) = (1 - tau) A + tau B` (Hampapur, Jain and Weymouth,
1995), with two consequences that motion, pans and light do not share:

* Small pictures move along the straight line from A to B at even speed. A cut stands on its two
  ends instead, and other changes leave the line.
* The energy of detail of two unrelated pictures follows the parabola `(1 - tau)^2 E_A + tau^2 E_B`
  (Alattar, 1993), however much both move, and dips in the middle; otherwise it goes straight from
  E_A to E_B.

For every window of a few lengths both are turned into ratios of squared errors, of the model
against its rival. The sum of their logarithms is the evidence. A fade through black is two windows
with black between them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_LENGTHS_S = (0.2, 0.27, 0.35, 0.45, 0.6, 0.8, 1.0, 1.3, 1.65, 2.1, 2.6)
LONGEST_S = _LENGTHS_S[-1]
_GRID_S = 1 / 30
_MOST_FRAMES = round(LONGEST_S / _GRID_S) + 2
_LEAST_STEPS = 4
_LEAST_EVIDENCE = 1.4
"""Natural logarithm: the model explains the window four times better than its rivals."""
_LEAST_DIFFERENCE = 10.0
"""Grey levels between both ends, root of the mean square."""
_LARGEST_STEP = 0.2
"""Of the way from A to B between two pictures, beside the even share; more is a cut."""
_LEAST_DIP = 0.5
"""Share of the parabola's dip that the detail shows; 1 for unrelated pictures."""
_FLAT_LEVELS = 6.0
"""Contrast under which a picture shows nothing: black, white, or a plain colour."""
_AT_ONCE = 128
"""Windows and pictures that are computed with at once: memory for all would be fifty times that of
the pictures themselves."""
_FLATTEST_GAP_S = 2.0
"""How long black may stand between a fade out and a fade in."""


@dataclass(frozen=True, kw_only=True)
class Blend:
    """A window that is a dissolve: `start` is the last picture of A alone, `end` the first of B
    alone, both as numbers of frames."""

    start: int
    end: int
    evidence: float


def find_blends(times_s: np.ndarray, pictures: np.ndarray, detail: np.ndarray) -> list[Blend]:
    """The dissolves in one stretch without a cut, in order, apart from each other.

    Args:
        times_s: `float64 [n]`, rising.
        pictures: `uint8 [n, H, W, 3]`, small.
        detail: `float32 [n, K]`, mean squared gradient in each of K parts of the picture.
    """
    grid = _on_grid(times_s)
    if len(grid) <= _LEAST_STEPS:
        return []
    small = pictures[grid].reshape(len(grid), -1)
    flat = _in_parts(small, lambda part: part.astype(np.float32).std(1)) < _FLAT_LEVELS
    apart = _distances(small)
    step_s = float(np.median(np.diff(times_s[grid])))
    widths = sorted({max(_LEAST_STEPS, round(length / step_s)) for length in _LENGTHS_S})
    found = [
        _windows(times_s[grid], apart, detail[grid], flat, start, width)
        for width in widths
        if width < min(len(grid), _MOST_FRAMES)
        for start in _parts(np.flatnonzero(apart[:-width, width] > _LEAST_DIFFERENCE**2))
    ]
    rows = np.concatenate([np.zeros((0, 4)), *found])
    chosen: list[np.ndarray] = []
    for row in rows[np.argsort(-rows[:, 3], kind="stable")]:
        if all(row[1] <= other[0] or row[0] >= other[1] for other in chosen):
            chosen.append(row)
    chosen.sort(key=lambda row: row[0])
    blends = [
        Blend(start=int(grid[int(row[0])]), end=int(grid[int(row[1])]), evidence=float(row[2]))
        for row in chosen
    ]
    return _through_black(blends, times_s, pictures)


def _on_grid(times_s: np.ndarray) -> np.ndarray:
    """Numbers of frames, no nearer to each other than the grid."""
    kept, last = [], -np.inf
    for number, at in enumerate(times_s.tolist()):
        if at - last >= _GRID_S - 1e-3:
            kept.append(number)
            last = at
    return np.array(kept, dtype=np.int64)


def _parts(numbers: np.ndarray) -> list[np.ndarray]:
    return [numbers[first : first + _AT_ONCE] for first in range(0, len(numbers), _AT_ONCE)]


def _in_parts(pictures: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """`[n]`, something of each of `[n, ...]`."""
    return np.concatenate([of(part) for part in _parts(pictures)])


def _distances(small: np.ndarray) -> np.ndarray:
    """`[n, K]`, mean squared difference of picture i and picture i + k; infinite past the end."""
    num, dims = small.shape
    apart = np.full((num, _MOST_FRAMES), np.inf, np.float32)
    squares = _in_parts(small, lambda part: (part.astype(np.float32) ** 2).mean(1))
    for first in range(0, num, _MOST_FRAMES):
        columns = small[first : first + 2 * _MOST_FRAMES].astype(np.float32)
        rows = columns[:_MOST_FRAMES]
        product = rows @ columns.T / dims
        square = squares[first : first + len(rows), None] - 2 * product
        square = square + squares[None, first : first + len(columns)]
        at, lag = np.nonzero(np.ones((len(rows), _MOST_FRAMES), bool))
        inside = at + lag < len(columns)
        at, lag = at[inside], lag[inside]
        apart[first + at, lag] = np.maximum(square[at, at + lag], 0)
    return apart


def _windows(
    times_s: np.ndarray,
    apart: np.ndarray,
    detail: np.ndarray,
    flat: np.ndarray,
    start: np.ndarray,
    width: int,
) -> np.ndarray:
    """Rows of (start, end, evidence, weight) of the windows of one length that are dissolves, among
    those with the starts `[n]`.

    By the law of cosines, distances alone say how far along the line from A to B a picture lies
    and how far off it.
    """
    end = start + width
    whole = apart[start, width][:, None]
    inner = np.arange(1, width)
    tau = (times_s[start[:, None] + inner] - times_s[start, None]) / (
        times_s[end, None] - times_s[start, None]
    )
    from_a = apart[start[:, None], inner]
    to_b = apart[start[:, None] + inner, width - inner]
    along = (whole + from_a - to_b) / (2 * whole)
    off_line = np.maximum(from_a - along**2 * whole, 0)
    blend_error = (off_line + (along - tau) ** 2 * whole).mean(1)
    steps = np.diff(np.pad(along, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1))), axis=1)
    ratio = _cut_error(from_a, to_b) / np.maximum(blend_error, 1e-3)
    dip, dip_ratio = _dip(detail, start, width, tau)
    evidence = np.log(np.clip(ratio, 0.2, 20)) + np.log(np.clip(dip_ratio, 0.1, 10))
    at_flat = flat[start] | flat[end]
    seen = np.concatenate([[0], np.cumsum(flat)])
    blocked = (seen[end] - seen[start + 1] > 0) & ~at_flat
    good = (
        (evidence > _LEAST_EVIDENCE)
        & (np.abs(steps).max(1) < _LARGEST_STEP + 1 / width)
        & ((dip > _LEAST_DIP) | at_flat)
        & ~blocked
    )
    weight = evidence * np.sqrt(whole[:, 0])
    return np.stack([start, end, evidence, weight], 1)[good].astype(np.float64)


def _cut_error(from_a: np.ndarray, to_b: np.ndarray) -> np.ndarray:
    """`[n]`, the least mean squared error of A up to some picture and B from there on."""
    left = np.pad(np.cumsum(from_a, 1), ((0, 0), (1, 0)))
    right = np.pad(np.cumsum(to_b[:, ::-1], 1)[:, ::-1], ((0, 0), (0, 1)))
    return (left + right).min(1) / from_a.shape[1]


def _dip(
    detail: np.ndarray, start: np.ndarray, width: int, tau: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`[n]` each: the share of the dip that is there, by least squares, and how much better the
    parabola fits than the straight line."""
    inner = np.arange(1, width)
    of_a, of_b = detail[start][:, None], detail[start + width][:, None]
    seen = detail[start[:, None] + inner]
    tau = tau[..., None].astype(np.float32)
    straight = (1 - tau) * of_a + tau * of_b
    parabola = (1 - tau) ** 2 * of_a + tau**2 * of_b
    gap = straight - parabola
    missing = straight - seen
    share = (missing * gap).sum((1, 2)) / np.maximum((gap**2).sum((1, 2)), 1e-6)
    bent = ((parabola - seen) ** 2).sum((1, 2))
    return share, (missing**2).sum((1, 2)) / np.maximum(bent, 1e-6)


def _through_black(blends: list[Blend], times_s: np.ndarray, pictures: np.ndarray) -> list[Blend]:
    """Joins a fade out with the fade in that follows it after nothing but flat pictures."""
    joined: list[Blend] = []
    for blend in blends:
        if joined:
            before = joined[-1]
            between = pictures[before.end : blend.start + 1]
            contrast = between.reshape(len(between), -1).std(1)
            near = times_s[blend.start] - times_s[before.end] < _FLATTEST_GAP_S
            if near and contrast.max() < _FLAT_LEVELS:
                joined[-1] = Blend(
                    start=before.start,
                    end=blend.end,
                    evidence=min(before.evidence, blend.evidence),
                )
                continue
        joined.append(blend)
    return joined
