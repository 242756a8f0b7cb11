"""A block transform as a yardstick: what keeping a few coefficients of the cosine transform gives.

It learns nothing but which coefficients vary most, so a learned tokenizer that keeps as many
numbers should reconstruct at least as well.
"""

import math
from collections.abc import Sequence

import torch
from einops import rearrange
from torch import Tensor

from models.tokenizers.causal import to_bytes, to_pixels


class BlockDCT:
    """Keeps the same `channels` coefficients of each block's orthonormal DCT-II."""

    def __init__(
        self, temporal: int, spatial: int, channels: int, videos: Sequence[Tensor]
    ) -> None:
        self.temporal, self.spatial = temporal, spatial
        space = dct_matrix(spatial)
        block = torch.kron(dct_matrix(temporal), torch.kron(space, space))
        basis = torch.kron(_COLOURS, block).float()
        flat = torch.cat([self._blocks(v) for v in videos])
        self.mean = flat.mean(0)
        variance = ((flat - self.mean) @ basis.T).square().mean(0)
        self.rows = basis[variance.argsort(descending=True)[:channels]]

    def reconstruct(self, video: Tensor) -> Tensor:
        """`uint8 [T, H, W, 3]` to the same after only the kept coefficients are left."""
        num_frames, height, width, _ = video.shape
        flat = (self._blocks(video) - self.mean) @ self.rows.T @ self.rows + self.mean
        pixels = rearrange(
            flat,
            "(t h w) (c dt dh dw) -> c (t dt) (h dh) (w dw)",
            c=3,
            h=height // self.spatial,
            w=width // self.spatial,
            dt=self.temporal,
            dh=self.spatial,
            dw=self.spatial,
        )
        return to_bytes(pixels[:, self.temporal - 1 :])[:num_frames]

    def _blocks(self, video: Tensor) -> Tensor:
        pixels = to_pixels(video)
        before = pixels[:, :1].expand(-1, self.temporal - 1, -1, -1)
        return rearrange(
            torch.cat([before, pixels], dim=1),
            "c (t dt) (h dh) (w dw) -> (t h w) (c dt dh dw)",
            dt=self.temporal,
            dh=self.spatial,
            dw=self.spatial,
        )


def dct_matrix(size: int) -> Tensor:
    """Orthonormal DCT-II, `float64 [size, size]` (Ahmed, Natarajan and Rao 1974)."""
    k = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi / size * (k[None] + 0.5) * k[:, None]) * (2 / size) ** 0.5
    matrix[0] /= 2**0.5
    return matrix


# Grey, blue-yellow, red-cyan: an orthonormal stand-in for YCbCr.
_COLOURS = (
    torch.tensor([[1, 1, 1], [-1, -1, 2], [1, -1, 0]], dtype=torch.float64)
    / torch.tensor([[3.0], [6.0], [2.0]], dtype=torch.float64).sqrt()
)
