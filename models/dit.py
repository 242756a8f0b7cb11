"""Diffusion transformer over packed video tokens, with cross-attention to text.

Peebles and Xie 2023 (DiT, AdaLN-zero); cross-attention, per-head QK-RMSNorm and 3D rotary
positions as in NVIDIA's video foundation models (arXiv 2503.12964, section 4).

Legend: n samples, N tokens, L text tokens, h hidden size, H heads, D head size, p patch features.
"""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.errors import ConfigError
from models.attention import Attention, Packed, local_attention
from models.conditioning import SampleConditioning, TextConditioning
from models.layers import MLP, Linears, PlainLinears, RMSNorm, layer_norm
from models.pack import PackLayout
from models.positions import RotaryPositions3D, rotate, sincos_positions


@dataclass(kw_only=True)
class DiTConfig:
    """Shape of a DiT."""

    hidden_size: int = 384
    num_layers: int = 12
    num_heads: int = 6
    mlp_ratio: float = 4.0
    patch: list[int] = field(default_factory=lambda: [1, 2, 2])
    """Latent patch (t, h, w)."""
    rope_base_fps: float = 24.0
    absolute_positions: bool = True
    """Adds fixed sin-cos positions to the tokens, besides the rotary ones."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "hidden_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("mlp_ratio", "rope_base_fps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"model.{name} must be positive, got {getattr(self, name)}")
        if int(self.hidden_size * self.mlp_ratio) < 1:
            raise ConfigError(
                f"model.mlp_ratio={self.mlp_ratio} of model.hidden_size={self.hidden_size} leaves "
                "the MLP no feature"
            )
        if self.hidden_size % self.num_heads:
            raise ConfigError(
                f"model.hidden_size={self.hidden_size} is not divisible by "
                f"model.num_heads={self.num_heads}"
            )
        head_dim = self.hidden_size // self.num_heads
        if head_dim % 2 or head_dim < 6:
            raise ConfigError(
                f"model.hidden_size/num_heads = {head_dim}; 3D rotary positions need an even head "
                "size of at least 6"
            )
        if len(self.patch) != 3 or min(self.patch) < 1:
            raise ConfigError(f"model.patch must be three positive sizes, got {self.patch}")

    @property
    def patch_size(self) -> tuple[int, int, int]:
        t, h, w = self.patch
        return t, h, w


class SelfAttention(nn.Module):
    """Attention of a sample's tokens among themselves; RMSNorm per head on q and k."""

    def __init__(self, config: DiTConfig, attention: Attention, linears: Linears) -> None:
        super().__init__()
        h = config.hidden_size
        self.head_dim = h // config.num_heads
        self.attention = attention
        self.q = linears.column(h, h, bias=False)
        self.k = linears.column(h, h, bias=False)
        self.v = linears.column(h, h, bias=False)
        self.norm_q = RMSNorm(self.head_dim)
        self.norm_k = RMSNorm(self.head_dim)
        self.out = linears.row(h, h, bias=False)

    def forward(self, x: Tensor, layout: Packed, cos: Tensor, sin: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim))
        k = self.k(x).unflatten(-1, (-1, self.head_dim))
        v = self.v(x).unflatten(-1, (-1, self.head_dim))
        q = rotate(self.norm_q(q), cos, sin)
        k = rotate(self.norm_k(k), cos, sin)
        return self.out(self.attention(q, k, v, layout).flatten(-2))


class CrossAttention(nn.Module):
    """Attention of a sample's tokens to its own text."""

    def __init__(self, config: DiTConfig, attention: Attention, linears: Linears) -> None:
        super().__init__()
        h = config.hidden_size
        self.head_dim = h // config.num_heads
        self.attention = attention
        self.q = linears.column(h, h, bias=False)
        self.k = linears.column(h, h, bias=False)
        self.v = linears.column(h, h, bias=False)
        self.norm_q = RMSNorm(self.head_dim)
        self.norm_k = RMSNorm(self.head_dim)
        self.out = linears.row(h, h, bias=False)

    def forward(self, x: Tensor, text: Tensor, layout: Packed) -> Tensor:
        q = self.norm_q(self.q(x).unflatten(-1, (-1, self.head_dim)))
        k = self.norm_k(self.k(text).unflatten(-1, (-1, self.head_dim)))
        v = self.v(text).unflatten(-1, (-1, self.head_dim))
        return self.out(self.attention(q, k, v, layout).flatten(-2))


class DiTBlock(nn.Module):
    """Self-attention, cross-attention, MLP, each modulated and gated per sample (AdaLN-zero)."""

    def __init__(self, config: DiTConfig, attention: Attention, linears: Linears) -> None:
        super().__init__()
        h = config.hidden_size
        self.self_attention = SelfAttention(config, attention, linears)
        self.cross_attention = CrossAttention(config, attention, linears)
        self.mlp = MLP(h, int(h * config.mlp_ratio), linears)
        self.modulation = linears.replicated(h, 9 * h, bias=True)

    def forward(
        self,
        x: Tensor,
        condition: Tensor,
        text: Tensor,
        layout: PackLayout,
        cos: Tensor,
        sin: Tensor,
    ) -> Tensor:
        # x [N, h], condition [n, h], text [L, h]
        shift_a, scale_a, gate_a, shift_c, scale_c, gate_c, shift_m, scale_m, gate_m = (
            self.modulation(F.silu(condition)).chunk(9, dim=-1)
        )
        y = modulated(x, shift_a, scale_a, layout)
        y = self.self_attention(y, layout.self_attention, cos, sin)
        x = torch.addcmul(x, layout.spread(gate_a), y)
        y = modulated(x, shift_c, scale_c, layout)
        y = self.cross_attention(y, text, layout.cross_attention)
        x = torch.addcmul(x, layout.spread(gate_c), y)
        y = self.mlp(modulated(x, shift_m, scale_m, layout))
        return torch.addcmul(x, layout.spread(gate_m), y)


class FinalLayer(nn.Module):
    """Modulated norm and the projection back to patch features."""

    def __init__(self, hidden_size: int, token_dim: int, linears: Linears) -> None:
        super().__init__()
        self.modulation = linears.replicated(hidden_size, 2 * hidden_size, bias=True)
        self.project = linears.replicated(hidden_size, token_dim, bias=True)

    def forward(self, x: Tensor, condition: Tensor, layout: PackLayout) -> Tensor:
        shift, scale = self.modulation(F.silu(condition)).chunk(2, dim=-1)
        return self.project(modulated(x, shift, scale, layout))


def modulated(x: Tensor, shift: Tensor, scale: Tensor, layout: PackLayout) -> Tensor:
    """Layer norm of `x [N, h]`, then each sample's own `shift` and `scale` `[n, h]` (AdaLN).

    Fused and added per sample where possible: at small sizes a step is bound by memory traffic.
    """
    return torch.addcmul(layout.spread(shift), layer_norm(x), layout.spread(1 + scale))


class DiT(nn.Module):
    """Tokens of a pack to tokens of a pack, each sample under its own noise level.

    Args:
        config: the shape.
        token_dim: features p of a token, latent channels times the patch volume.
        text_dim: size of the text embeddings.
        attention: the attention callable, or one per layer.
        linears: who makes the linears.
    """

    def __init__(
        self,
        config: DiTConfig,
        *,
        token_dim: int,
        text_dim: int,
        attention: Attention | list[Attention] = local_attention,
        linears: Linears | None = None,
    ) -> None:
        super().__init__()
        linears = linears or PlainLinears()
        per_layer = attention if isinstance(attention, list) else [attention] * config.num_layers
        self.config = config
        self.embed = linears.replicated(token_dim, config.hidden_size, bias=True)
        self.condition = SampleConditioning(config.hidden_size, linears)
        self.text = TextConditioning(text_dim, config.hidden_size, linears)
        self.positions = RotaryPositions3D(
            config.hidden_size // config.num_heads, base_fps=config.rope_base_fps
        )
        # A dict keeps each block's name when a pipeline stage holds only some of them.
        self.blocks = nn.ModuleDict(
            {str(i): DiTBlock(config, per_layer[i], linears) for i in range(config.num_layers)}
        )
        self.final = FinalLayer(config.hidden_size, token_dim, linears)

    def forward(self, x: Tensor, c_noise: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, p]`, `c_noise [n]`, `text [L, d]` to `[N, p]`."""
        text = self.text(text, layout)
        condition = self.condition(c_noise, text, layout)
        cos, sin = self.positions(layout, x.dtype)
        x = self.embed(x)
        if self.config.absolute_positions:
            size, base_fps = self.config.hidden_size, self.config.rope_base_fps
            x = x + sincos_positions(layout, size, base_fps).to(x.dtype)
        for block in self.blocks.values():
            x = block(x, condition, text, layout, cos, sin)
        return self.final(x, condition, layout)
