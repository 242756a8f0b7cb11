"""Orthonormal 3D Haar transform in blocks, causal in time.

A block of `temporal x spatial x spatial` pixels becomes that many coefficients per colour. The
transform is the Kronecker product of three one-dimensional Haar matrices (Haar 1910), applied as
one matrix product, so it costs one GEMM whatever the number of levels.
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
    """`float32 [K, K]`, K = temporal * spatial^2, acting on pixels in the order (t h w)."""
    space = haar_matrix(spatial)
    return torch.kron(haar_matrix(temporal), torch.kron(space, space)).float()


def blocks(frames: Tensor, temporal: int, spatial: int) -> Tensor:
    """`[T, H, W, 3]` to blocks of pixels `[t, h, w, 3, K]`, T = 1 + k * temporal.

    The first frame stands for the `temporal - 1` frames before it, so that no block holds pixels
    from after its last frame's group: later frames change nothing in earlier coefficients.
    """
    before = frames[:1].expand(temporal - 1, -1, -1, -1)
    return rearrange(
        torch.cat([before, frames]),
        "(t dt) (h dh) (w dw) c -> t h w c (dt dh dw)",
        dt=temporal,
        dh=spatial,
        dw=spatial,
    )


def forward(blocks: Tensor, matrix: Tensor) -> Tensor:
    """Blocks of pixels, `float [t, h, w, 3, K]`, to coefficients `[3*K, t, h, w]`."""
    return rearrange(blocks @ matrix.T, "t h w c k -> (c k) t h w")


def inverse(coefficients: Tensor, temporal: int, spatial: int, matrix: Tensor) -> Tensor:
    """Coefficients `[3*K, t, h, w]` to `[3, T, H, W]`: inverts `forward` and `blocks`."""
    pixels = rearrange(coefficients, "(c k) t h w -> c t h w k", c=3) @ matrix
    video = rearrange(
        pixels,
        "c t h w (dt dh dw) -> c (t dt) (h dh) (w dw)",
        dt=temporal,
        dh=spatial,
        dw=spatial,
    )
    return video[:, temporal - 1 :]
