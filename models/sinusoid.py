"""Sinusoidal features of a scalar."""

import math

import torch
from torch import Tensor


def sinusoid(
    value: Tensor,
    dim: int,
    *,
    max_period: float = 10_000.0,
    cosine_first: bool = False,
    last_is_slowest: bool = False,
) -> Tensor:
    """Sine and cosine features of a scalar, `[n]` to `float32 [n, dim]` (Vaswani et al. 2017, 3.5).

    Args:
        cosine_first: cosines before sines.
        last_is_slowest: frequencies reach `1 / max_period` itself, rather than one step before.
    """
    half = dim // 2
    steps = torch.arange(half, dtype=torch.float32, device=value.device)
    frequencies = torch.exp(-math.log(max_period) * steps / (half - last_is_slowest))
    angle = value.float().unsqueeze(-1) * frequencies
    parts = [angle.cos(), angle.sin()] if cosine_first else [angle.sin(), angle.cos()]
    return torch.cat(parts, dim=-1)
