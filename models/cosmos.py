"""The diffusion transformer of Cosmos-Predict (Agarwal et al. 2025, "Cosmos world foundation model
platform", section 5.1.1), over packed tokens.

The block is `models.dit.DiTBlock` with low-rank modulation and no bias anywhere; the modulation
reads the bare sinusoid of the timestep, and its shared vector comes from an MLP of it.

Legend: n samples, N tokens, L text tokens, h hidden size, p patch features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.attention import Attention, local_attention, per_layer
from models.checks import (
    check_at_least,
    check_ffn_size,
    check_head_dim,
    check_positive,
    check_sizes,
)
from models.conditioning import with_null
from models.dit import DiTBlock
from models.flops import Flops
from models.layers import MLP, Linears, PlainLinears, RMSNorm
from models.modulation import FinalLayer
from models.multihead import HeadShape
from models.pack import Grid, PackLayout
from models.patch import Patch, patch_of
from models.positions import LearnedPositions3D, RotaryPositions3D
from models.sinusoid import sinusoid


@dataclass(kw_only=True)
class CosmosConfig:
    """Shape of a Cosmos-Predict transformer; the defaults are those of its 7B text to world."""

    kind: Literal["cosmos"] = "cosmos"
    hidden_size: int = 4096
    num_layers: int = 28
    num_heads: int = 32
    mlp_ratio: float = 4.0
    adaln_rank: int = 256
    channels_in: int = 16
    """Of the latents, with the mask of conditioning frames where there is one."""
    channels_out: int = 16
    padding_mask: bool = True
    """One more channel for padded pixels. There are none in a pack, so it is zero."""
    text_dim: int = 1024
    patch: list[int] = field(default_factory=lambda: [1, 2, 2])
    max_grid: list[int] = field(default_factory=lambda: [128, 120, 120])
    """Patches (t, h, w) that the learned positions reach."""
    rope_extrapolation: list[float] = field(default_factory=lambda: [2.0, 1.0, 1.0])
    rope_base_fps: float | None = 24.0
    """Null counts latent frames, whatever their rate, as Cosmos-Predict2 does."""
    learned_positions: bool = True

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "num_heads", "adaln_rank", "text_dim"):
            check_at_least(self, name, 1)
        for name in ("channels_in", "channels_out"):
            check_at_least(self, name, 1)
        for name in ("mlp_ratio", "rope_extrapolation"):
            check_positive(self, name)
        check_sizes(self, "patch")
        check_sizes(self, "max_grid")
        check_head_dim(self)
        check_ffn_size(self)

    @property
    def ffn_size(self) -> int:
        return int(self.hidden_size * self.mlp_ratio)

    @property
    def patch_volume(self) -> int:
        pt, ph, pw = self.patch
        return pt * ph * pw

    @property
    def patch_size(self) -> Patch:
        return patch_of(self.patch)

    def flops(
        self, *, grids: Sequence[Grid], lens_text: Sequence[int], token_dim: int, text_dim: int
    ) -> Flops:
        """Forward operations of a pack, counted as in `models.flops`."""
        h, layers, rank = self.hidden_size, self.num_layers, self.adaln_rank
        lens = [t * height * width for t, height, width in grids]
        texts = [max(m, 1) for m in lens_text]
        num_tokens = sum(lens)
        attentions = 6 * h * h * num_tokens + 2 * text_dim * h * sum(texts)
        modulation = (layers * 12 * h * rank + 3 * h * rank + 4 * h * h) * len(lens)
        cross_pairs = sum(s * m for s, m in zip(lens, texts, strict=True))
        padding = self.padding_mask * self.patch_volume
        return Flops(
            projections=2.0 * layers * attentions,
            self_attention=4.0 * layers * h * sum(s * s for s in lens),
            cross_attention=4.0 * layers * h * cross_pairs,
            mlp=2.0 * layers * 2 * h * int(h * self.mlp_ratio) * num_tokens,
            conditioning=2.0 * modulation,
            ends=2.0 * (2 * token_dim + padding) * h * num_tokens,
            num_tokens=num_tokens,
        )


class NormedPositions3D(LearnedPositions3D):
    """Learned positions brought to unit mean square: `e / (1e-6 + |e| / sqrt(h))`."""

    def forward(self, layout: PackLayout) -> Tensor:
        e = super().forward(layout)
        size = torch.linalg.vector_norm(e, dim=-1, keepdim=True)
        return e / (1e-6 + size / e.shape[-1] ** 0.5)


class CosmosTime(nn.Module):
    """Timesteps `[n]` to the vector that modulation reads `[n, h]` and its shared one `[n, 3h]`."""

    def __init__(self, hidden_size: int, linears: Linears) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.up = linears.replicated(hidden_size, hidden_size, bias=False)
        self.shared = linears.replicated(hidden_size, 3 * hidden_size, bias=False)
        self.norm = RMSNorm(hidden_size)

    def forward(self, timestep: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        features = sinusoid(timestep, self.hidden_size, cosine_first=True).to(dtype)
        return self.norm(features), self.shared(F.silu(self.up(features)))


class Cosmos(nn.Module):
    """Tokens of a pack to tokens of a pack."""

    def __init__(
        self,
        config: CosmosConfig,
        *,
        attention: Attention | list[Attention] = local_attention,
        linears: Linears | None = None,
    ) -> None:
        super().__init__()
        linears = linears or PlainLinears()
        h = config.hidden_size
        attentions = per_layer(attention, config.num_layers)
        self.config = config
        channels = config.channels_in + config.padding_mask
        self.embed = linears.replicated(channels * config.patch_volume, h, bias=False)
        self.time = CosmosTime(h, linears)
        self.positions = RotaryPositions3D(
            h // config.num_heads,
            base_fps=config.rope_base_fps,
            extrapolation=config.rope_extrapolation,
        )
        self.learned_positions = None
        if config.learned_positions:
            self.learned_positions = NormedPositions3D(config.max_grid, h)
        heads = HeadShape(dim=h, num_heads=config.num_heads, eps=1e-5)
        cross = replace(heads, dim_kv=config.text_dim)
        self.blocks = nn.ModuleDict()
        for i in range(config.num_layers):
            mlp = MLP(h, config.ffn_size, linears, exact_gelu=True)
            block = DiTBlock(heads, cross, mlp, config.adaln_rank, attentions[i], linears)
            self.blocks[str(i)] = block
        size = config.channels_out * config.patch_volume
        self.final = FinalLayer(h, size, linears, config.adaln_rank, bias=False)

    def forward(self, x: Tensor, timestep: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, channels_in * patch volume]`, `timestep [n]`, `text [L, text_dim]` to
        `[N, channels_out * patch volume]`. A sample without text gets one embedding of zeros."""
        text = with_null(text, text.new_zeros(1, text.shape[1]), layout)
        condition, shared = self.time(timestep, x.dtype)
        rotary = self.positions(layout, x.dtype)
        if self.config.padding_mask:
            x = F.pad(x, (0, self.config.patch_volume))
        x = self.embed(x)
        positions = None
        if self.learned_positions is not None:
            positions = self.learned_positions(layout).to(x.dtype)
        for block in self.blocks.values():
            x = x if positions is None else x + positions
            x = block(x, condition, shared, text, layout, rotary)
        return self.final(x, condition, layout, shared)
