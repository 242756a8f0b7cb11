"""How the camera moves, from the flow between two pictures.

The flow of a turning, zooming camera is a similarity: four numbers that most of the picture agrees
on. What moves on its own does not, and is weighed down.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import cv2
import numpy as np

GRID = (16, 9)
"""(columns, rows) of blocks whose mean flow is fitted."""
RADIUS = 1 / math.sqrt(12)
"""Root mean square distance from the centre of a rectangle, in diagonals, whatever its shape: by it
a turn or a zoom becomes a speed."""
STATIC = 0.004
"""Diagonals per second; a camera that moves less stands still."""
_ROUNDS = 4
_LEAST_TEXTURE = 1.0
_LEAST_BLOCKS = 12
_LEAST_AGREEING = 0.4
_ROUNDING = 0.0003
"""Diagonals: a tenth of a pixel of the reduced plane. Residuals below it agree."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """One camera movement, in the camera's own directions, per second."""

    pan: float
    """To the right, in diagonals."""
    tilt: float
    """Up, in diagonals."""
    zoom: float
    """In: growth of the picture."""
    roll_deg: float
    """Clockwise."""

    @property
    def speed(self) -> float:
        """Root mean square speed of the picture that follows from it, in diagonals."""
        return math.hypot(
            self.pan, self.tilt, self.zoom * RADIUS, math.radians(self.roll_deg) * RADIUS
        )


def camera_move(flow: np.ndarray, slope: np.ndarray, seconds: float) -> Move | None:
    """The similarity that most of a flow field agrees on; None where too little does.

    Weighted least squares, reweighted by Cauchy's function of the residuals (Holland and Welsch
    1977), the scale being their median. Blocks without texture have no flow of their own and do
    not count.

    Args:
        flow: `float32 [H, W, 2]`, pixels.
        slope: `float32 [H, W]`, squared gradient of the first picture.
        seconds: between the two pictures.
    """
    height, width = flow.shape[:2]
    diagonal = math.hypot(width, height)
    blocks = cv2.resize(flow, GRID, interpolation=cv2.INTER_AREA).reshape(-1, 2) / diagonal
    texture = cv2.resize(slope, GRID, interpolation=cv2.INTER_AREA).ravel()
    use = texture > _LEAST_TEXTURE
    if use.sum() < _LEAST_BLOCKS:
        return None
    model = _model(width, height)[:, use].reshape(-1, 4)
    target = blocks[use].T.ravel().astype(np.float64)
    weighted, params, fitted = model, np.zeros(4), target
    residual = np.zeros(len(target) // 2)
    for _ in range(_ROUNDS):
        params = np.linalg.solve(weighted.T @ model, weighted.T @ target)
        fitted = model @ params
        residual = np.hypot(*(target - fitted).reshape(2, -1))
        scale = max(2 * float(np.median(residual)), _ROUNDING)
        weight = 1 / (1 + (residual / scale) ** 2)
        weighted = model * np.tile(weight, 2)[:, None]
    explained = np.hypot(*fitted.reshape(2, -1))
    agreeing = np.mean(residual <= np.maximum(3 * _ROUNDING, 0.3 * explained))
    if agreeing < _LEAST_AGREEING:
        return None
    right, lower, growth, turn = (params / seconds).tolist()
    return Move(pan=-right, tilt=lower, zoom=growth, roll_deg=-math.degrees(turn))


@functools.cache
def _model(width: int, height: int) -> np.ndarray:
    """`[2, blocks, 4]`: the flow (right, down) at each block, in diagonals, by (right, down,
    growth, clockwise turn) of the picture."""
    diagonal = math.hypot(width, height)
    across = ((np.arange(GRID[0]) + 0.5) / GRID[0] - 0.5) * width / diagonal
    down = ((np.arange(GRID[1]) + 0.5) / GRID[1] - 0.5) * height / diagonal
    x, y = (a.ravel() for a in np.meshgrid(across, down))
    one, zero = np.ones(len(x)), np.zeros(len(x))
    return np.stack([np.stack([one, zero, x, -y], 1), np.stack([zero, one, y, x], 1)])


def camera_label(measures: Mapping[str, float]) -> str:
    """`static`, or the largest part of a movement: `pan`, `tilt`, `zoom` or `roll`.

    Args:
        measures: `pan`, `tilt`, `zoom` and `roll` as in `Move`.
    """
    speeds = {
        "pan": abs(measures["pan"]),
        "tilt": abs(measures["tilt"]),
        "zoom": abs(measures["zoom"]) * RADIUS,
        "roll": math.radians(abs(measures["roll"])) * RADIUS,
    }
    largest = max(speeds, key=lambda name: speeds[name])
    return largest if math.hypot(*speeds.values()) >= STATIC else "static"
