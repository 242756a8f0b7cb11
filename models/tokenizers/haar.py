"""Orthonormal 3D Haar transform in blocks, causal in time.

A block of `temporal x spatial x spatial` pixels becomes that many coefficients per colour. The
transform is the Kronecker product of three one-dimensional Haar matrices (Haar 1910), applied as
one matrix product, so it costs one GEMM whatever the number of levels.

Legend: B videos, T frames, t = 1 + (T - 1) / temporal, K = 3 * temporal * spatial^2.
"""

import torch
from einops import rearrange
from torch import Tensor


def haar_matrix(size: int) -> Tensor:
    """Full Haar matrix, `float64 [size, size]`, rows orthonormal; `size` is a power of two."""
    if size < 1 or size & (size - 1):
        raise ValueError(f"the Haar transform needs a power of two, got {size}")
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < size:
        n = matrix.shape[0]
        low = torch.kron(matrix, torch.tensor([[1.0, 1.0]], dtype=torch.float64))
        high = torch.kron(
            torch.eye(n, dtype=torch.float64), torch.tensor([[1.0, -1.0]], dtype=torch.float64)
        )
        matrix = torch.cat([low, high]) / 2**0.5
    return matrix


def block_matrix(temporal: int, spatial: int) -> Tensor:
    """`float32 [K/3, K/3]`, acting on pixels in the order (t h w)."""
    space = haar_matrix(spatial)
    return torch.kron(haar_matrix(temporal), torch.kron(space, space)).float()


def forward(video: Tensor, temporal: int, spatial: int, matrix: Tensor, *, first: bool) -> Tensor:
    """Pixels `[B, 3, T, H, W]` to coefficients `[B, K, t, h, w]`.

    With `first`, the video begins here: its first frame stands for the `temporal - 1` frames
    before it, T = 1 + k * temporal, and no block holds pixels from after its last frame's group, so
    that later frames change nothing in earlier coefficients. Else T = k * temporal, t = k.
    """
    if first:
        before = video[:, :, :1].expand(-1, -1, temporal - 1, -1, -1)
        video = torch.cat([before, video], dim=2)
    blocks = rearrange(
        video,
        "b c (t dt) (h dh) (w dw) -> b t h w c (dt dh dw)",
        dt=temporal,
        dh=spatial,
        dw=spatial,
    )
    return rearrange(blocks @ matrix.T, "b t h w c k -> b (c k) t h w")


def inverse(
    coefficients: Tensor, temporal: int, spatial: int, matrix: Tensor, *, first: bool
) -> Tensor:
    """Coefficients `[B, K, t, h, w]` to pixels `[B, 3, T, H, W]`: inverts `forward`."""
    pixels = rearrange(coefficients, "b (c k) t h w -> b c t h w k", c=3) @ matrix
    video = rearrange(
        pixels,
        "b c t h w (dt dh dw) -> b c (t dt) (h dh) (w dw)",
        dt=temporal,
        dh=spatial,
        dw=spatial,
    )
    return video[:, :, temporal - 1 :] if first else video
