"""Finite scalar quantization: latents whose values lie on a small grid, so that each place is one
of finitely many codes (Mentzer et al. 2023, "Finite scalar quantization: VQ-VAE made simple").

A raw value x of a channel with L levels is bounded by tanh(x / REACH), and the interval -1 to 1 is
cut into L equal cells (the paper's eq. 1 with its rounding, but for the place of the cells, which
here needs no case for even L). What is decoded is the middle of the cell, taken back through
atanh, so that a fine grid is the identity and the linear code around it stays what it is. Training
goes straight through (Bengio et al. 2013): the gradient is that of no quantization.

Legend: C channels, one a level; t, h, w places.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

REACH = 1.55
"""Brings the middles of the cells near the best ones for normal values, for 2 to 16 levels (Max
1960, table 1: 0.80 for 2 levels, 2.15 the outermost of 8, 2.73 of 16)."""


def num_codes(levels: Sequence[int]) -> int:
    """Size of the vocabulary."""
    return math.prod(levels)


def quantized(raw: Tensor, levels: Sequence[int]) -> Tensor:
    """`raw [..., C, t, h, w]` on the grid, with the gradient of `raw`."""
    on_grid = _values(_cells(raw, levels), levels, raw.dtype)
    # In this order nothing is rounded.
    return on_grid + (raw - raw.detach())


def codes_of(raw: Tensor, levels: Sequence[int]) -> Tensor:
    """`raw [..., C, t, h, w]` to codes `int64 [..., t, h, w]`, the first channel counting ones."""
    cells = _cells(raw, levels)
    weight = _column([math.prod(levels[:i]) for i in range(len(levels))], raw.device)
    return (cells * weight).sum(-4)


def values_of(codes: Tensor, levels: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Codes `int64 [..., t, h, w]` to raw values `[..., C, t, h, w]`: inverts `codes_of`."""
    weight = _column([math.prod(levels[:i]) for i in range(len(levels))], codes.device)
    cells = codes.unsqueeze(-4) // weight % _column(levels, codes.device)
    return _values(cells, levels, dtype)


def _cells(raw: Tensor, levels: Sequence[int]) -> Tensor:
    count = _column(levels, raw.device)
    bounded = torch.tanh(raw.detach().double() / REACH)
    return torch.minimum(((bounded + 1) / 2 * count).floor().long(), count - 1)


def _values(cells: Tensor, levels: Sequence[int], dtype: torch.dtype) -> Tensor:
    middle = (2 * cells.double() + 1) / _column(levels, cells.device) - 1
    return (REACH * torch.atanh(middle)).to(dtype)


def _column(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device).view(-1, 1, 1, 1)
