"""Sinusoidal features of a scalar."""

import math

import torch
from torch import Tensor


def sinusoid(value: Tensor, dim: int, max_period: float = 10_000.0) -> Tensor:
    """Sine and cosine features of a scalar, `[n]` to `[n, dim]` (Vaswani et al. 2017, 3.5)."""
    half = dim // 2
    steps = torch.arange(half, dtype=torch.float32, device=value.device)
    frequencies = torch.exp(-math.log(max_period) * steps / half)
    angle = value.float().unsqueeze(-1) * frequencies
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
