"""Llama-style diffusion transformer of Movie Gen (Polyak et al. 2024, section 3.1.3).

RMSNorm, SwiGLU and grouped-query attention; self-attention and MLP are modulated per sample,
cross-attention between them is not; learned positions are added before every block. The residual
of cross-attention is kept: what it found is added to its own input, and the MLP adds to that sum.
(NeMo's version of this block lets the MLP add to what was before cross-attention.)

Legend: n samples, N tokens, L text tokens, h hidden size, p patch features.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from torch import Tensor, nn

from models.attention import Attention, local_attention, per_layer
from models.checks import check_at_least, check_head_dim, check_sizes
from models.conditioning import (
    ActionConditioning,
    NullText,
    PrefixConditioning,
    SampleConditioning,
    TextConditioning,
)
from models.flops import Widths
from models.layers import Linears, PlainLinears, RMSNorm, SwiGLU, rms_norm
from models.modulation import AdaLN, FinalLayer, gated, modulated
from models.multihead import CrossAttention, HeadShape, SelfAttention
from models.pack import PackLayout
from models.patch import Patch, patch_of
from models.positions import LearnedPositions3D

EPS = 1e-5


@dataclass(kw_only=True)
class MovieGenConfig:
    """Shape of a Movie Gen transformer."""

    kind: Literal["moviegen"] = "moviegen"
    hidden_size: int = 2048
    num_layers: int = 16
    num_heads: int = 32
    num_kv_heads: int = 8
    ffn_size: int = 8192
    """Features between the linears of an MLP, which has three."""
    patch: list[int] = field(default_factory=lambda: [1, 2, 2])
    """Latent patch (t, h, w)."""
    max_grid: list[int] = field(default_factory=lambda: [128, 128, 128])
    """Patches (t, h, w) that the learned positions reach."""

    null_text: NullText = "learned"
    """The token that stands for no text, as in guidance: learned, or zero."""
    prefix: bool = False
    """Whether it can be told that the first latent frames are given (image and video to video)."""
    action_dim: int = 0
    """Numbers of an action for each frame, that it is told; 0: it is told none."""
    null_action: NullText = "learned"
    """What stands for no action: learned, or zero."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "num_kv_heads", "hidden_size", "ffn_size"):
            check_at_least(self, name, 1)
        check_at_least(self, "action_dim", 0)
        check_sizes(self, "patch")
        check_sizes(self, "max_grid")
        check_head_dim(self, rotary=False)
        self.heads(dim_kv=None)

    @property
    def patch_size(self) -> Patch:
        return patch_of(self.patch)

    def widths(self, text_dim: int) -> Widths:
        """For `models.flops.count_flops`."""
        return Widths(
            hidden_size=self.hidden_size,
            ffn_size=self.ffn_size,
            mlp_matrices=3,
            kv_size=self.heads(text_dim).width_kv,
            text_size=text_dim,
            projects_text=False,
            adaln_rank=0,
            modulated=2 * self.num_layers,
            full=self.num_layers,
            cross=self.num_layers,
            mlp=self.num_layers,
        )

    def heads(self, dim_kv: int | None) -> HeadShape:
        """Raises `ConfigError` where key heads do not divide the heads."""
        return HeadShape(
            dim=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            dim_kv=dim_kv,
            qk_norm="none",
        )


class MovieGenBlock(nn.Module):
    """Self-attention, cross-attention, SwiGLU; the first and the last modulated and gated."""

    def __init__(
        self, config: MovieGenConfig, dim_text: int, attention: Attention, linears: Linears
    ) -> None:
        super().__init__()
        h = config.hidden_size
        self.self_attention = SelfAttention(config.heads(None), attention, linears)
        self.norm_cross = RMSNorm(h, EPS)
        self.cross_attention = CrossAttention(config.heads(dim_text), attention, linears)
        self.mlp = SwiGLU(h, config.ffn_size, linears)
        self.modulation = AdaLN(h, 2, 0, linears)

    def forward(self, x: Tensor, condition: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, h]`, `condition [n, h]`, `text [L, d]` to `[N, h]`."""
        norm = partial(rms_norm, eps=EPS)
        first, last = self.modulation(condition, None)
        shift, scale, gate = first
        y = modulated(x, shift, scale, layout, norm)
        x = gated(x, gate, self.self_attention(y, layout.self_attention, None), layout)
        x = x + self.cross_attention(self.norm_cross(x), text, layout.cross_attention)
        shift, scale, gate = last
        return gated(x, gate, self.mlp(modulated(x, shift, scale, layout, norm)), layout)


class MovieGen(nn.Module):
    """Tokens of a pack to tokens of a pack, each sample under its own noise level.

    Arguments as those of `models.dit.DiT`.
    """

    def __init__(
        self,
        config: MovieGenConfig,
        *,
        token_dim: int,
        text_dim: int,
        attention: Attention | list[Attention] = local_attention,
        linears: Linears | None = None,
    ) -> None:
        super().__init__()
        linears = linears or PlainLinears()
        h = config.hidden_size
        attentions = per_layer(attention, config.num_layers)
        self.config = config
        self.embed = linears.replicated(token_dim, h, bias=True)
        self.prefix = PrefixConditioning(h, linears) if config.prefix else None
        self.actions = None
        if config.action_dim:
            self.actions = ActionConditioning(
                config.action_dim, h, linears, null=config.null_action
            )
        self.text = TextConditioning(text_dim, None, linears, null=config.null_text)
        self.condition = SampleConditioning(h, text_dim, linears)
        self.learned_positions = LearnedPositions3D(config.max_grid, h)
        self.blocks = nn.ModuleDict(
            {
                str(i): MovieGenBlock(config, text_dim, attentions[i], linears)
                for i in range(config.num_layers)
            }
        )
        self.final = FinalLayer(h, token_dim, linears, norm=partial(rms_norm, eps=EPS))

    def forward(self, x: Tensor, c_noise: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, p]`, `c_noise [n]`, `text [L, d]` to `[N, p]`."""
        text = self.text(text, layout)
        condition, _ = self.condition(c_noise, layout.fps, layout.text_mean(text))
        positions = self.learned_positions(layout).to(x.dtype)
        x = self.embed(x)
        x = x if self.prefix is None else self.prefix(x, layout)
        x = x if self.actions is None else self.actions(x, layout)
        for block in self.blocks.values():
            x = block(x + positions, condition, text, layout)
        return self.final(x, condition, layout)
