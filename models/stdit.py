"""Spatio-temporal diffusion transformer over packed video tokens.

Full, spatial and temporal self-attention in one block, in any order and each optional, as in
NVIDIA's video foundation models (arXiv 2503.12964, section 4.3) and, without the full one, in
Open-Sora's STDiT-v3. Spatial attention is among the tokens of a frame, temporal attention among
those of one place through all frames.

Nothing here knows of ranks. The layout says in which arrangement each sub-layer runs, brings the
tokens into it, and gives the rows that attend.

Legend: n samples, N tokens, L text tokens, h hidden size, H heads, D head size, p patch features.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from common.errors import ConfigError
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
    NullText,
    PrefixConditioning,
    SampleConditioning,
    TextConditioning,
)
from models.flops import Widths
from models.layers import MLP, Linears, PlainLinears
from models.modulation import AdaLN, FinalLayer, gated, modulated
from models.multihead import CrossAttention, HeadShape, SelfAttention
from models.pack import PackLayout, Rows
from models.patch import Patch, patch_of
from models.positions import Rotary, RotaryPositions3D, sincos_positions

ATTENTIONS = ("full", "spatial", "temporal")
SUBLAYERS = (*ATTENTIONS, "cross", "mlp")
TRADED = {"spatial": "temporal", "temporal": "spatial"}


@dataclass(kw_only=True)
class STDiTConfig:
    """Shape of an ST-DiT."""

    kind: Literal["stdit"] = "stdit"
    hidden_size: int = 1152
    num_layers: int = 28
    num_heads: int = 16
    mlp_ratio: float = 4.0
    patch: list[int] = field(default_factory=lambda: [1, 2, 2])
    """Latent patch (t, h, w)."""
    sublayers: list[str] = field(
        default_factory=lambda: ["spatial", "full", "cross", "temporal", "mlp"]
    )
    """Sub-layers of a block, in order: full, spatial, temporal, cross, mlp. Any may be left out or
    come twice."""
    zigzag: bool = False
    """In every second block spatial and temporal trade places. Over ranks this halves the times
    that tokens change hands; the weights of either order do not fit the other."""
    adaln_rank: int = 0
    """Rank of the modulation (AdaLN-LoRA); 0: dense. See `models.modulation.AdaLN`."""
    null_text: NullText = "learned"
    """The token that stands for no text, as in guidance: learned, or zero."""
    prefix: bool = False
    """Whether it can be told that the first latent frames are given (image and video to video)."""
    action_dim: int = 0
    """Numbers of an action for each frame, that it is told; 0: it is told none."""
    null_action: NullText = "learned"
    """What stands for no action: learned, or zero."""
    rope_base_fps: float = 24.0
    absolute_positions: Literal["sincos", "none"] = "sincos"
    """Positions added to the tokens, besides the rotary ones."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "hidden_size"):
            check_at_least(self, name, 1)
        check_at_least(self, "adaln_rank", 0)
        check_at_least(self, "action_dim", 0)
        for name in ("mlp_ratio", "rope_base_fps"):
            check_positive(self, name)
        check_sizes(self, "patch")
        check_head_dim(self)
        check_ffn_size(self)
        unknown = [name for name in self.sublayers if name not in SUBLAYERS]
        if unknown or not self.sublayers:
            raise ConfigError(
                f"model.sublayers={self.sublayers}: choose from {', '.join(SUBLAYERS)}"
                + (f"; {unknown[0]} is none of them" if unknown else "")
            )
        if not set(self.sublayers) & set(ATTENTIONS):
            raise ConfigError(
                f"model.sublayers={self.sublayers} lets no token see another: add full, or "
                "spatial and temporal"
            )

    @property
    def patch_size(self) -> Patch:
        return patch_of(self.patch)

    @property
    def ffn_size(self) -> int:
        return int(self.hidden_size * self.mlp_ratio)

    def widths(self, text_dim: int) -> Widths:
        """For `models.flops.count_flops`."""
        sublayers = self.of_network()
        return Widths(
            hidden_size=self.hidden_size,
            ffn_size=self.ffn_size,
            mlp_matrices=2,
            kv_size=self.hidden_size,
            text_size=self.hidden_size,
            projects_text=True,
            adaln_rank=self.adaln_rank,
            modulated=len(sublayers),
            **{kind: sublayers.count(kind) for kind in SUBLAYERS},
        )

    def of_block(self, index: int) -> list[str]:
        """The sub-layers of block `index`."""
        if self.zigzag and index % 2:
            return [TRADED.get(name, name) for name in self.sublayers]
        return list(self.sublayers)

    def of_network(self) -> list[str]:
        """The sub-layers of all blocks: what a layout schedules."""
        return [name for i in range(self.num_layers) for name in self.of_block(i)]


class Phases:
    """Rotary phases of the tokens in each arrangement that a forward pass goes through."""

    def __init__(self, positions: RotaryPositions3D, dtype: torch.dtype) -> None:
        self._positions, self._dtype = positions, dtype
        self._made: dict[tuple[int, int], Rotary] = {}

    def of(self, layout: PackLayout, rows: Rows | None = None) -> Rotary:
        """In the order of the layout, or of its `rows`."""
        if rows is None or rows.there is None:
            key = (id(layout), 0)
            if key not in self._made:
                self._made[key] = self._positions(layout, self._dtype)
            return self._made[key]
        key = (id(layout), id(rows))
        if key not in self._made:
            cos, sin = self.of(layout)
            self._made[key] = rows.arrange(cos), rows.arrange(sin)
        return self._made[key]


class STDiTBlock(nn.Module):
    """The sub-layers of one block, each modulated and gated per sample (AdaLN-zero)."""

    def __init__(
        self, config: STDiTConfig, index: int, attention: dict[str, Attention], linears: Linears
    ) -> None:
        super().__init__()
        h = config.hidden_size
        heads = HeadShape(dim=h, num_heads=config.num_heads)
        self.name = f"blocks.{index}"
        self.kinds = config.of_block(index)
        self.sublayers = nn.ModuleList()
        for kind in self.kinds:
            if kind == "mlp":
                made = MLP(h, config.ffn_size, linears)
            elif kind == "cross":
                made = CrossAttention(heads, attention[kind], linears)
            else:
                made = SelfAttention(heads, attention[kind], linears)
            self.sublayers.append(made)
        self.modulation = AdaLN(h, len(self.kinds), config.adaln_rank, linears)

    def forward(
        self,
        x: Tensor,
        condition: Tensor,
        shared: Tensor | None,
        text: Tensor,
        here: PackLayout,
        steps: list[PackLayout],
        phases: Phases,
    ) -> Tensor:
        """`x [N, h]` as `here` holds it, to `[N, h]` as the last of `steps` does."""
        modulations = self.modulation(condition, shared)
        parts = zip(self.kinds, self.sublayers, modulations, steps, strict=True)
        for kind, sublayer, (shift, scale, gate), layout in parts:
            x = here.switch(x, layout, f"{self.name}.{kind}")
            here = layout
            y = modulated(x, shift, scale, layout)
            if kind == "mlp":
                y = sublayer(y)
            elif kind == "cross":
                y = sublayer(y, text, layout.cross_attention)
            elif kind == "full":
                y = sublayer(y, layout.self_attention, phases.of(layout))
            else:
                rows = layout.spatial if kind == "spatial" else layout.temporal
                y = sublayer(rows.arrange(y), rows.attention, phases.of(layout, rows))
                y = rows.restore(y)
            x = gated(x, gate, y, layout)
        return x


def _by_kind(attention: Attention | dict[str, Attention]) -> dict[str, Attention]:
    return attention if isinstance(attention, dict) else dict.fromkeys(SUBLAYERS, attention)


class STDiT(nn.Module):
    """Tokens of a pack to tokens of a pack, each sample under its own noise level.

    Args:
        config: the shape.
        token_dim: features p of a token, latent channels times the patch volume.
        text_dim: size of the text embeddings.
        attention: the attention callable, or one per layer, or for each layer one per kind of
            sub-layer: "full", "spatial", "temporal", "cross".
        linears: who makes the linears.
    """

    def __init__(
        self,
        config: STDiTConfig,
        *,
        token_dim: int,
        text_dim: int,
        attention: Attention | list[Attention] | list[dict[str, Attention]] = local_attention,
        linears: Linears | None = None,
    ) -> None:
        super().__init__()
        linears = linears or PlainLinears()
        h = config.hidden_size
        self.config = config
        self.embed = linears.replicated(token_dim, h, bias=True)
        self.prefix = PrefixConditioning(h, linears) if config.prefix else None
        self.actions = None
        if config.action_dim:
            self.actions = ActionConditioning(
                config.action_dim, h, linears, null=config.null_action
            )
        self.text = TextConditioning(text_dim, h, linears, null=config.null_text)
        self.condition = SampleConditioning(h, h, linears, shared=config.adaln_rank > 0)
        self.positions = RotaryPositions3D(h // config.num_heads, base_fps=config.rope_base_fps)
        # A dict keeps each block's name when a pipeline stage holds only some of them.
        self.blocks = nn.ModuleDict()
        for i, one in enumerate(per_layer(attention, config.num_layers)):
            self.blocks[str(i)] = STDiTBlock(config, i, _by_kind(one), linears)
        self.final = FinalLayer(h, token_dim, linears, config.adaln_rank)

    def forward(self, x: Tensor, c_noise: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, p]`, `c_noise [n]`, `text [L, d]` to `[N, p]`, held as `layout` says."""
        steps = layout.schedule(self.config.of_network())
        phases = Phases(self.positions, x.dtype)
        text = self.text(text, layout)
        condition, shared = self.condition(c_noise, layout.fps, layout.text_mean(text))
        here = steps[0]
        x = self.embed(layout.switch(x, here, "embed"))
        x = x if self.prefix is None else self.prefix(x, here)
        x = x if self.actions is None else self.actions(x, here)
        if self.config.absolute_positions == "sincos":
            size, base_fps = self.config.hidden_size, self.config.rope_base_fps
            x = x + sincos_positions(here, size, base_fps).to(x.dtype)
        size = len(self.config.sublayers)
        for i, block in enumerate(self.blocks.values()):
            ahead = steps[i * size : (i + 1) * size]
            x = block(x, condition, shared, text, here, ahead, phases)
            here = ahead[-1]
        return here.switch(self.final(x, condition, here, shared), layout, "final")
