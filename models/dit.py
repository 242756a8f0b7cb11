"""Diffusion transformer over packed video tokens, with cross-attention to text or with classes.

Peebles and Xie 2023 (DiT, AdaLN-zero); cross-attention, per-head QK-RMSNorm, AdaLN of low rank and
3D rotary positions as in NVIDIA's video foundation models (arXiv 2503.12964, section 4).

Legend: n samples, N tokens, L text tokens, h hidden size, p patch features.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor, nn

from models.attention import Attention, local_attention, per_layer
from models.checks import (
    check_at_least,
    check_ffn_size,
    check_head_dim,
    check_positive,
    check_sizes,
)
from models.conditioning import (
    ActionConditioning,
    ClassConditioning,
    NullText,
    PrefixConditioning,
    SampleConditioning,
    TextConditioning,
)
from models.flops import Widths
from models.layers import MLP, Linears, PlainLinears
from models.modulation import LAYER_NORM, AdaLN, FinalLayer, Norm, gated, modulated
from models.multihead import CrossAttention, HeadShape, SelfAttention
from models.pack import PackLayout
from models.patch import Patch, patch_of
from models.positions import LearnedPositions3D, Rotary, RotaryPositions3D, sincos_positions


@dataclass(kw_only=True)
class DiTConfig:
    """Shape of a DiT."""

    kind: Literal["dit"] = "dit"
    hidden_size: int = 384
    num_layers: int = 12
    num_heads: int = 6
    mlp_ratio: float = 4.0
    patch: list[int] = field(default_factory=lambda: [1, 2, 2])
    """Latent patch (t, h, w)."""
    adaln_rank: int = 0
    """Rank of the modulation (AdaLN-LoRA); 0: dense. See `models.modulation.AdaLN`."""
    project_text: bool = True
    """Projects text to `hidden_size` once. Without, every block's keys and values are made of the
    embeddings as they are: fewer weights where text is narrower than half of `hidden_size`."""
    null_text: NullText = "learned"
    """The token that stands for no text, as in guidance: learned, or zero."""
    prefix: bool = False
    """Whether it can be told that the first latent frames are given (image and video to video)."""
    action_dim: int = 0
    """Numbers of an action for each frame, that it is told; 0: it is told none."""
    null_action: NullText = "learned"
    """What stands for no action: learned, or zero."""
    num_classes: int = 0
    """More than 0: conditioned on a class label instead of text, without cross-attention."""
    rope_base_fps: float = 24.0
    rope_extrapolation: list[float] = field(default_factory=lambda: [1.0, 1.0, 1.0])
    """How many times the trained extent (t, h, w) is to reach: see `RotaryPositions3D`."""
    absolute_positions: Literal["sincos", "learned", "none"] = "sincos"
    """Positions added to the tokens, besides the rotary ones."""
    max_grid: list[int] = field(default_factory=lambda: [128, 128, 128])
    """Patches (t, h, w) that learned positions reach."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "hidden_size"):
            check_at_least(self, name, 1)
        for name in ("adaln_rank", "num_classes", "action_dim"):
            check_at_least(self, name, 0)
        for name in ("mlp_ratio", "rope_base_fps", "rope_extrapolation"):
            check_positive(self, name)
        check_sizes(self, "patch")
        check_sizes(self, "max_grid")
        check_head_dim(self)
        check_ffn_size(self)

    @property
    def patch_size(self) -> Patch:
        return patch_of(self.patch)

    @property
    def ffn_size(self) -> int:
        return int(self.hidden_size * self.mlp_ratio)

    def widths(self, text_dim: int) -> Widths:
        """For `models.flops.count_flops`."""
        told_text = self.num_classes == 0
        return Widths(
            hidden_size=self.hidden_size,
            ffn_size=self.ffn_size,
            mlp_matrices=2,
            kv_size=self.hidden_size,
            text_size=told_text * (self.hidden_size if self.project_text else text_dim),
            projects_text=told_text and self.project_text,
            adaln_rank=self.adaln_rank,
            modulated=(2 + told_text) * self.num_layers,
            full=self.num_layers,
            cross=told_text * self.num_layers,
            mlp=self.num_layers,
        )


class DiTBlock(nn.Module):
    """Self-attention, cross-attention, MLP, each modulated and gated per sample (AdaLN-zero).

    Args:
        heads: of self-attention.
        heads_cross: of cross-attention; None leaves it out.
        adaln_rank: of the modulation, 0 for a dense one.
        norm_mlp: the norm before the MLP.
    """

    def __init__(
        self,
        heads: HeadShape,
        heads_cross: HeadShape | None,
        mlp: nn.Module,
        adaln_rank: int,
        attention: Attention,
        linears: Linears,
        norm_mlp: Norm = LAYER_NORM,
    ) -> None:
        super().__init__()
        self.self_attention = SelfAttention(heads, attention, linears)
        self.cross_attention = None
        if heads_cross is not None:
            self.cross_attention = CrossAttention(heads_cross, attention, linears)
        self.mlp, self.norm_mlp = mlp, norm_mlp
        parts = 2 if heads_cross is None else 3
        self.modulation = AdaLN(heads.dim, parts, adaln_rank, linears)

    def forward(
        self,
        x: Tensor,
        condition: Tensor,
        shared: Tensor | None,
        text: Tensor | None,
        layout: PackLayout,
        rotary: Rotary | None,
    ) -> Tensor:
        """`x [N, h]`, `condition [n, h]`, `shared [n, 3h]`, `text [L, d]` to `[N, h]`."""
        (shift, scale, gate), *rest = self.modulation(condition, shared)
        y = modulated(x, shift, scale, layout)
        x = gated(x, gate, self.self_attention(y, layout.self_attention, rotary), layout)
        if self.cross_attention is not None:
            (shift, scale, gate), *rest = rest
            y = modulated(x, shift, scale, layout)
            x = gated(x, gate, self.cross_attention(y, text, layout.cross_attention), layout)
        ((shift, scale, gate),) = rest
        y = modulated(x, shift, scale, layout, self.norm_mlp)
        return gated(x, gate, self.mlp(y), layout)


class DiT(nn.Module):
    """Tokens of a pack to tokens of a pack, each sample under its own noise level.

    Args:
        config: the shape.
        token_dim: features p of a token, latent channels times the patch volume.
        text_dim: size of the text embeddings; not read where the network is told classes.
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
        if config.num_classes:
            self.classes = ClassConditioning(config.num_classes, h)
            dim_text, dim_about = 0, h
        else:
            dim = h if config.project_text else None
            self.text = TextConditioning(text_dim, dim, linears, null=config.null_text)
            dim_text = dim_about = self.text.dim
        self.condition = SampleConditioning(h, dim_about, linears, shared=config.adaln_rank > 0)
        self.positions = RotaryPositions3D(
            h // config.num_heads,
            base_fps=config.rope_base_fps,
            extrapolation=config.rope_extrapolation,
        )
        if config.absolute_positions == "learned":
            self.learned_positions = LearnedPositions3D(config.max_grid, h)
        heads = HeadShape(dim=h, num_heads=config.num_heads)
        cross = replace(heads, dim_kv=dim_text) if dim_text else None
        # A dict keeps each block's name when a pipeline stage holds only some of them.
        self.blocks = nn.ModuleDict()
        for i in range(config.num_layers):
            mlp = MLP(h, config.ffn_size, linears)
            block = DiTBlock(heads, cross, mlp, config.adaln_rank, attentions[i], linears)
            self.blocks[str(i)] = block
        self.final = FinalLayer(h, token_dim, linears, config.adaln_rank)

    def forward(self, x: Tensor, c_noise: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, p]`, `c_noise [n]` to `[N, p]`; `text` is embeddings `[L, d]` of the samples'
        text, or their class labels `int64 [n]` where the network is told classes."""
        if self.config.num_classes:
            about = self.classes(text)
        else:
            text = self.text(text, layout)
            about = layout.text_mean(text)
        condition, shared = self.condition(c_noise, layout.fps, about)
        rotary = self.positions(layout, x.dtype)
        x = self.embed(x)
        x = x if self.prefix is None else self.prefix(x, layout)
        x = x if self.actions is None else self.actions(x, layout)
        x = self._with_positions(x, layout)
        for block in self.blocks.values():
            x = block(x, condition, shared, text, layout, rotary)
        return self.final(x, condition, layout, shared)

    def _with_positions(self, x: Tensor, layout: PackLayout) -> Tensor:
        kind = self.config.absolute_positions
        if kind == "none":
            return x
        if kind == "learned":
            return x + self.learned_positions(layout).to(x.dtype)
        size, base_fps = self.config.hidden_size, self.config.rope_base_fps
        return x + sincos_positions(layout, size, base_fps).to(x.dtype)
