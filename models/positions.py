"""Positions in three dimensions: rotary with time in seconds, fixed and learned absolute ones.

Su et al. 2021 (RoFormer, eq. 34) for one dimension; the split of the head over (t, h, w) and the
time scaled by the frame rate follow Cosmos (Agarwal et al. 2025, section 5.1.1).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.pack import PackLayout
from models.sinusoid import sinusoid

Rotary = tuple[Tensor, Tensor]
"""Cosine and sine, each `[N, 1, D/2]` to broadcast over heads, never narrower than float32."""


class RotaryPositions3D(nn.Module):
    """Cosine and sine for every token of a pack.

    Of a head of size D, h and w take 2*floor(D/6) each and t the rest. The position along time is
    the latent frame's index times `base_fps / fps`, so that equal seconds turn by equal angles
    whatever the frame rate. A single image lies at time 0.

    Args:
        base_fps: None counts latent frames, whatever their rate.
        extrapolation: how many times longer than in training each axis (t, h, w) is to be; slows
            an axis of d features by theta * ratio^(d / (d - 2)), which stretches the slowest
            frequency by the ratio and leaves the fastest as it is (NTK-aware scaling; formula as
            in Cosmos).
    """

    def __init__(
        self,
        head_dim: int,
        base_fps: float | None = 24.0,
        theta: float = 10_000.0,
        extrapolation: Sequence[float] = (1.0, 1.0, 1.0),
    ) -> None:
        super().__init__()
        if head_dim % 2 or head_dim < 6:
            raise ValueError(f"head_dim must be even and at least 6 for 3D rotary, got {head_dim}")
        self.base_fps = base_fps
        dim_hw = 2 * (head_dim // 6)
        sizes = (head_dim - 2 * dim_hw, dim_hw, dim_hw)
        self.dims = tuple(size // 2 for size in sizes)
        frequencies = []
        for size, ratio in zip(sizes, extrapolation, strict=True):
            # An axis of one frequency has none to slow: its only one is the fastest.
            slower = theta * ratio ** (size / (size - 2)) if size > 2 else theta
            steps = torch.arange(0, size, 2, dtype=torch.float64, device="cpu")
            frequencies.append(slower ** -(steps / size))
        # No buffer: a network that is cast to a narrower type keeps its positions exact.
        self.frequencies = torch.cat(frequencies)

    def forward(self, layout: PackLayout, dtype: torch.dtype) -> Rotary:
        position = layout.coordinates.double()
        time = position[:, 0]
        if self.base_fps is not None:
            time = seconds_in_frames(layout, self.base_fps)
        parts = [time, position[:, 1], position[:, 2]]
        angle = torch.cat(
            [p[:, None].expand(-1, n) for p, n in zip(parts, self.dims, strict=True)], dim=-1
        ) * self.frequencies.to(position)
        angle = angle.unsqueeze(1)
        # A phase in a half type would be wrong by more than neighbours differ.
        dtype = torch.promote_types(dtype, torch.float32)
        return angle.cos().to(dtype), angle.sin().to(dtype)


class LearnedPositions3D(nn.Module):
    """Sum of three learned tables, one a latent axis: `[N, h]` (Polyak et al. 2024, 3.1.3)."""

    def __init__(self, sizes: Sequence[int], hidden_size: int) -> None:
        super().__init__()
        t, h, w = sizes
        self.t = nn.Parameter(torch.zeros(t, hidden_size))
        self.h = nn.Parameter(torch.zeros(h, hidden_size))
        self.w = nn.Parameter(torch.zeros(w, hidden_size))

    def forward(self, layout: PackLayout) -> Tensor:
        """Raises `ValueError` for a grid that the tables do not reach."""
        tables = (self.t, self.h, self.w)
        sizes = tuple(len(table) for table in tables)
        for grid in layout.grids:
            if any(n > size for n, size in zip(grid, sizes, strict=True)):
                raise ValueError(
                    f"a sample of {grid} patches (t, h, w) has no learned positions beyond "
                    f"{sizes}; raise model.max_grid"
                )
        t, h, w = layout.coordinates.unbind(-1)
        return self.t[t] + self.h[h] + self.w[w]


def sincos_positions(layout: PackLayout, hidden_size: int, base_fps: float) -> Tensor:
    """Fixed absolute positions, `float32 [N, hidden_size]`: sinusoids of (t, h, w) side by side.

    Time runs as in `RotaryPositions3D`. Rotary positions alone say where tokens lie to each other;
    where a token lies in the frame, which a network must know to draw a scene out of pure noise,
    it could otherwise only infer from the borders (Peebles and Xie 2023, section 3.2.1).
    """
    dim_hw = 2 * (hidden_size // 6)
    h, w = layout.coordinates[:, 1], layout.coordinates[:, 2]
    time = seconds_in_frames(layout, base_fps)
    parts = [(time, hidden_size - 2 * dim_hw), (h, dim_hw), (w, dim_hw)]
    return torch.cat([sinusoid(position, dim) for position, dim in parts], dim=-1)


def seconds_in_frames(layout: PackLayout, base_fps: float) -> Tensor:
    """`float64 [N]`: each token's latent frame, counted in frames of `base_fps`; 0 in an image."""
    fps = layout.fps.double()
    per_frame = torch.where(fps > 0, base_fps / fps.clamp(min=1e-6), 1.0)
    return layout.coordinates[:, 0] * layout.spread(per_frame)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns `x [N, H, D]` by `cos, sin [N, 1, D/2]`; feature i is paired with i + D/2.

    It is worked out in the wider of both types and given in that of `x`: kernels, and what is sent
    between ranks, want queries, keys and values alike.
    """
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
