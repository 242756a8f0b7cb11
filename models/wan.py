"""The transformer of Wan 2.1 (Wan team 2025, "Wan: open and advanced large-scale video generative
models", section 4.2), text to video, over packed tokens.

Its modulation is one linear of the timestep for the whole network plus a table for each block;
cross-attention is normed with weights and neither modulated nor gated; queries and keys are normed
over all heads together; latent frames are counted, whatever their rate.

Legend: n samples, N tokens, L text tokens, h hidden size, p patch features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.attention import Attention, local_attention, per_layer
from models.checks import check_at_least, check_head_dim, check_positive, check_sizes
from models.conditioning import with_null
from models.flops import Flops
from models.layers import MLP, LayerNorm, Linears, PlainLinears
from models.modulation import gated, modulated
from models.multihead import CrossAttention, HeadShape, SelfAttention
from models.pack import Grid, PackLayout
from models.patch import Patch, patch_of
from models.positions import Rotary, RotaryPositions3D
from models.sinusoid import sinusoid


@dataclass(kw_only=True)
class WanConfig:
    """Shape of a Wan 2.1 transformer; the defaults are those of its 1.3B."""

    kind: Literal["wan"] = "wan"
    hidden_size: int = 1536
    num_layers: int = 30
    num_heads: int = 12
    ffn_size: int = 8960
    channels: int = 16
    """Of the latents, in and out."""
    text_dim: int = 4096
    time_features: int = 256
    patch: list[int] = field(default_factory=lambda: [1, 2, 2])
    cross_attention_norm: bool = True
    eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "num_heads", "ffn_size", "channels", "text_dim"):
            check_at_least(self, name, 1)
        check_at_least(self, "time_features", 2)
        check_positive(self, "eps")
        check_sizes(self, "patch")
        check_head_dim(self)

    @property
    def token_dim(self) -> int:
        pt, ph, pw = self.patch
        return self.channels * pt * ph * pw

    @property
    def patch_size(self) -> Patch:
        return patch_of(self.patch)

    def flops(
        self, *, grids: Sequence[Grid], lens_text: Sequence[int], token_dim: int, text_dim: int
    ) -> Flops:
        """Forward operations of a pack, counted as in `models.flops`."""
        h, layers = self.hidden_size, self.num_layers
        lens = [t * height * width for t, height, width in grids]
        texts = [max(m, 1) for m in lens_text]
        num_tokens, num_text = sum(lens), sum(texts)
        attentions = layers * (6 * h * h * num_tokens + 2 * h * h * num_text)
        text = (text_dim * h + h * h) * num_text
        time = (self.time_features * h + 7 * h * h) * len(lens)
        cross_pairs = sum(s * m for s, m in zip(lens, texts, strict=True))
        return Flops(
            projections=2.0 * (attentions + text),
            self_attention=4.0 * layers * h * sum(s * s for s in lens),
            cross_attention=4.0 * layers * h * cross_pairs,
            mlp=2.0 * layers * 2 * h * self.ffn_size * num_tokens,
            conditioning=2.0 * time,
            ends=2.0 * 2 * token_dim * h * num_tokens,
            num_tokens=num_tokens,
        )


class WanBlock(nn.Module):
    """Self-attention, cross-attention, MLP; the first and the last modulated and gated."""

    def __init__(self, config: WanConfig, attention: Attention, linears: Linears) -> None:
        super().__init__()
        h = config.hidden_size
        heads = HeadShape(
            dim=h, num_heads=config.num_heads, qk_norm="width", eps=config.eps, bias=True
        )
        self.self_attention = SelfAttention(heads, attention, linears)
        self.norm_cross = nn.LayerNorm(h, config.eps) if config.cross_attention_norm else None
        self.cross_attention = CrossAttention(heads, attention, linears)
        self.mlp = MLP(h, config.ffn_size, linears, bias=True)
        self.table = nn.Parameter(torch.zeros(6, h))
        self.norm = LayerNorm(config.eps)

    def forward(
        self, x: Tensor, modulation: Tensor, text: Tensor, layout: PackLayout, rotary: Rotary
    ) -> Tensor:
        """`x [N, h]`, `modulation [n, 6, h]`, `text [L, h]` to `[N, h]`."""
        six = (modulation + self.table).unbind(1)
        shift, scale, gate = six[:3]
        y = modulated(x, shift, scale, layout, self.norm)
        x = gated(x, gate, self.self_attention(y, layout.self_attention, rotary), layout)
        y = x if self.norm_cross is None else self.norm_cross(x)
        x = x + self.cross_attention(y, text, layout.cross_attention)
        shift, scale, gate = six[3:]
        y = modulated(x, shift, scale, layout, self.norm)
        return gated(x, gate, self.mlp(y), layout)


class Wan(nn.Module):
    """Tokens of a pack to tokens of a pack, the velocity that Wan predicts."""

    def __init__(
        self,
        config: WanConfig,
        *,
        attention: Attention | list[Attention] = local_attention,
        linears: Linears | None = None,
    ) -> None:
        super().__init__()
        linears = linears or PlainLinears()
        h = config.hidden_size
        attentions = per_layer(attention, config.num_layers)
        self.config = config
        self.embed = linears.replicated(config.token_dim, h, bias=True)
        self.time = nn.ModuleList(
            [
                linears.replicated(config.time_features, h, bias=True),
                linears.replicated(h, h, bias=True),
                linears.replicated(h, 6 * h, bias=True),
            ]
        )
        self.text = nn.ModuleList(
            [
                linears.replicated(config.text_dim, h, bias=True),
                linears.replicated(h, h, bias=True),
            ]
        )
        self.positions = RotaryPositions3D(h // config.num_heads, base_fps=None)
        self.blocks = nn.ModuleDict(
            {str(i): WanBlock(config, attentions[i], linears) for i in range(config.num_layers)}
        )
        self.table = nn.Parameter(torch.zeros(2, h))
        self.project = linears.replicated(h, config.token_dim, bias=True)

    def forward(self, x: Tensor, timestep: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, p]`, `timestep [n]` from 0 (clean) to 1000, `text [L, text_dim]` to `[N, p]`.

        A sample without text gets one embedding of zeros, which is what Wan pads prompts with.
        """
        text = with_null(text, text.new_zeros(1, text.shape[1]), layout)
        first, second = self.text
        text = second(F.gelu(first(text), approximate="tanh"))
        first, second, third = self.time
        features = sinusoid(timestep, self.config.time_features, cosine_first=True).to(x.dtype)
        time = second(F.silu(first(features)))
        modulation = third(F.silu(time)).unflatten(-1, (6, -1))
        rotary = self.positions(layout, x.dtype)
        x = self.embed(x)
        for block in self.blocks.values():
            x = block(x, modulation, text, layout, rotary)
        shift, scale = (time[:, None] + self.table).unbind(1)
        norm = LayerNorm(self.config.eps)
        return self.project(modulated(x, shift, scale, layout, norm))
