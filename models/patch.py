"""Latents to tokens and back: patches in the order (t h w), each flattened as (c pt ph pw)."""

from collections.abc import Sequence

import torch
from einops import rearrange
from torch import Tensor

from models.pack import Grid

Patch = tuple[int, int, int]


def patch_of(sizes: Sequence[int]) -> Patch:
    """Sizes as a configuration holds them, a list."""
    t, h, w = sizes
    return t, h, w


def grid_of(latent_shape: Sequence[int], patch: Patch) -> Grid:
    """Patches along (t, h, w) for a latent `[C, T, H, W]`."""
    _, *sizes = latent_shape
    if any(s % p for s, p in zip(sizes, patch, strict=True)):
        raise ValueError(f"latent of shape {tuple(latent_shape)} is not a multiple of {patch}")
    t, h, w = (s // p for s, p in zip(sizes, patch, strict=True))
    return t, h, w


def patchify(latents: Sequence[Tensor], patch: Patch) -> Tensor:
    """Latents `[C, T, H, W]` of any shapes to one pack of tokens `[N, C*pt*ph*pw]`."""
    pt, ph, pw = patch
    pattern = "c (t pt) (h ph) (w pw) -> (t h w) (c pt ph pw)"
    return torch.cat([rearrange(x, pattern, pt=pt, ph=ph, pw=pw) for x in latents])


def unpatchify(tokens: Tensor, grids: Sequence[Grid], patch: Patch) -> list[Tensor]:
    """The inverse of `patchify`."""
    pt, ph, pw = patch
    pattern = "(t h w) (c pt ph pw) -> c (t pt) (h ph) (w pw)"
    parts = tokens.split([t * h * w for t, h, w in grids])
    return [
        rearrange(x, pattern, t=t, h=h, w=w, pt=pt, ph=ph, pw=pw)
        for x, (t, h, w) in zip(parts, grids, strict=True)
    ]
