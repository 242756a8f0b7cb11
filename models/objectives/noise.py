"""Distributions of noise levels, and how they shift with the size of a video.

With t = sigma / (1 + sigma), the time of flow matching, to multiply sigma by a is to take t to
`a t / (1 + (a - 1) t)` (Esser et al. 2024, eq. 23).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from common import rng
from models.objectives.config import ObjectiveConfig
from models.pack import Grid

T_EDGE = 1e-5
"""Times are kept this far from 0 and 1, where sigma would be 0 and infinite."""


def shift_of(config: ObjectiveConfig, grid: Grid) -> float:
    """By what the levels of a sample of `grid` patches (t, h, w) are multiplied."""
    frames, height, width = grid
    resolution = (height * width / config.base_frame_patches) ** config.resolution_power
    return config.shift * resolution * frames**config.length_power


def sample_sigma(config: ObjectiveConfig, keys: Tensor, grids: Sequence[Grid]) -> Tensor:
    """One sigma per sample: `keys int64 [n, 2]` to `float32 [n]`."""
    shift = torch.tensor([shift_of(config, g) for g in grids], dtype=torch.float64)
    shift = shift.to(keys.device)
    first = torch.zeros(len(grids), dtype=torch.int64, device=keys.device)
    if config.noise == "lognormal":
        sigma = (config.p_mean + config.p_std * rng.normal(keys, first)).exp()
    else:
        t = rng.uniform(keys, first)
        if config.noise == "mode":
            t = 1 - t - config.mode_scale * ((math.pi / 2 * t).cos() ** 2 - 1 + t)
        t = t.clamp(T_EDGE, 1 - T_EDGE)
        sigma = t / (1 - t)
    return (sigma * shift).float()
