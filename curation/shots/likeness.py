"""Whether two groups of small pictures show the same scene."""

import numpy as np

_SHIFT_PX = (3, 4)
"""Of small pictures, down and across: an eighth of the width and a sixth of the height."""
_FLAT = 40.0
"""Norm that is added to each picture's: about one grey level of contrast. Without it, noise of
two black pictures would decide."""
_MOST = 5
"""Pictures compared on each side."""


def likeness(before: np.ndarray, after: np.ndarray) -> float:
    """The highest normalised correlation of a picture of one group with one of the other, over
    small shifts; -1 to 1.

    It stays high across a flash (a picture before it is like one after), across camera shake and
    short pans (the shift follows), and across changes of exposure (the correlation is blind to
    gain and offset); between two scenes it is low, however still both are.

    Args:
        before, after: `uint8 [n, H, W, 3]`, each with one picture at least.
    """
    first, second = (_spread(group).astype(np.float32) for group in (before, after))
    height, width = first.shape[1:3]
    best = -1.0
    for down in range(-_SHIFT_PX[0], _SHIFT_PX[0] + 1):
        for across in range(-_SHIFT_PX[1], _SHIFT_PX[1] + 1):
            rows = slice(max(0, down), height + min(0, down))
            columns = slice(max(0, across), width + min(0, across))
            back_rows = slice(max(0, -down), height + min(0, -down))
            back_columns = slice(max(0, -across), width + min(0, -across))
            one = _normalised(first[:, rows, columns])
            other = _normalised(second[:, back_rows, back_columns])
            best = max(best, float((one @ other.T).max()))
    return best


def _spread(group: np.ndarray) -> np.ndarray:
    """A few pictures, evenly over the group, its ends among them."""
    return group[np.unique(np.linspace(0, len(group) - 1, _MOST).round().astype(int))]


def _normalised(group: np.ndarray) -> np.ndarray:
    """Without each channel's mean: a common tint is no likeness."""
    flat = (group - group.mean((1, 2), keepdims=True)).reshape(len(group), -1)
    return flat / (np.linalg.norm(flat, axis=1, keepdims=True) + _FLAT)
