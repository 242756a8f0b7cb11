"""Spatio-temporal diffusion transformer over packed video tokens.

Full, spatial and temporal self-attention in one block, in any order and each optional, as in
NVIDIA's video foundation models (arXiv 2503.12964, section 4.3) and, without the full one, in
Open-Sora's STDiT-v3. Spatial attention is among the tokens of a frame, temporal attention among
those of one place through all frames.

Nothing here knows of ranks. The layout says in which arrangement each sub-layer runs, brings the
tokens into it, and gives the rows that attend.

Legend: n samples, N tokens, L text tokens, h hidden size, H heads, D head size, p patch features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.errors import ConfigError
from models.attention import Attention, local_attention
from models.conditioning import SampleConditioning, TextConditioning
from models.dit import CrossAttention, DiTConfig, FinalLayer, SelfAttention, modulated
from models.layers import MLP, Linears, PlainLinears
from models.pack import PackLayout, Rows
from models.positions import RotaryPositions3D, sincos_positions

ATTENTIONS = ("full", "spatial", "temporal")
SUBLAYERS = (*ATTENTIONS, "cross", "mlp")
TRADED = {"spatial": "temporal", "temporal": "spatial"}


@dataclass(kw_only=True)
class STDiTConfig(DiTConfig):
    """Shape of an ST-DiT."""

    sublayers: list[str] = field(
        default_factory=lambda: ["spatial", "full", "cross", "temporal", "mlp"]
    )
    """Sub-layers of a block, in order: full, spatial, temporal, cross, mlp. Any may be left out or
    come twice. Open-Sora's STDiT-v3 has spatial, cross, mlp, temporal, cross, mlp."""
    zigzag: bool = False
    """In every second block spatial and temporal trade places. Over ranks this halves the times
    that tokens change hands; the weights of either order do not fit the other."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
        self._made: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}

    def of(self, layout: PackLayout, rows: Rows | None, kind: str) -> tuple[Tensor, Tensor]:
        """`cos, sin`, each `[N, 1, D/2]`, in the order of `rows`, or of the layout."""
        key = (id(layout), kind)
        if key not in self._made:
            if rows is None or rows.there is None:
                shared = (id(layout), "")
                if shared not in self._made:
                    self._made[shared] = self._positions(layout, self._dtype)
                self._made[key] = self._made[shared]
            else:
                cos, sin = self.of(layout, None, "")
                self._made[key] = rows.arrange(cos), rows.arrange(sin)
        return self._made[key]


class STDiTBlock(nn.Module):
    """The sub-layers of one block, each modulated and gated per sample (AdaLN-zero)."""

    def __init__(
        self, config: STDiTConfig, index: int, attention: dict[str, Attention], linears: Linears
    ) -> None:
        super().__init__()
        h = config.hidden_size
        self.name = f"blocks.{index}"
        self.kinds = config.of_block(index)
        self.sublayers = nn.ModuleList()
        for kind in self.kinds:
            if kind == "mlp":
                made = MLP(h, int(h * config.mlp_ratio), linears)
            elif kind == "cross":
                made = CrossAttention(config, attention[kind], linears)
            else:
                made = SelfAttention(config, attention[kind], linears)
            self.sublayers.append(made)
        self.modulation = linears.replicated(h, 3 * len(self.kinds) * h, bias=True)

    def forward(
        self,
        x: Tensor,
        condition: Tensor,
        text: Tensor,
        here: PackLayout,
        steps: Sequence[PackLayout],
        phases: Phases,
    ) -> Tensor:
        """`x [N, h]` as `here` holds it, to `[N, h]` as the last of `steps` does."""
        chunks = self.modulation(F.silu(condition)).chunk(3 * len(self.kinds), dim=-1)
        for i, (kind, sublayer, layout) in enumerate(
            zip(self.kinds, self.sublayers, steps, strict=True)
        ):
            x = here.switch(x, layout, f"{self.name}.{kind}")
            here = layout
            shift, scale, gate = chunks[3 * i : 3 * i + 3]
            y = modulated(x, shift, scale, layout)
            if kind == "mlp":
                y = sublayer(y)
            elif kind == "cross":
                y = sublayer(y, text, layout.cross_attention)
            elif kind == "full":
                y = sublayer(y, layout.self_attention, *phases.of(layout, None, kind))
            else:
                rows = layout.spatial if kind == "spatial" else layout.temporal
                y = sublayer(rows.arrange(y), rows.attention, *phases.of(layout, rows, kind))
                y = rows.restore(y)
            x = torch.addcmul(x, layout.spread(gate), y)
        return x


class STDiT(nn.Module):
    """Tokens of a pack to tokens of a pack, each sample under its own noise level.

    Args:
        config: the shape.
        token_dim: features p of a token, latent channels times the patch volume.
        text_dim: size of the text embeddings.
        attention: the attention callable, or for each layer one per kind of sub-layer: "full",
            "spatial", "temporal", "cross".
        linears: who makes the linears.
    """

    def __init__(
        self,
        config: STDiTConfig,
        *,
        token_dim: int,
        text_dim: int,
        attention: Attention | list[dict[str, Attention]] = local_attention,
        linears: Linears | None = None,
    ) -> None:
        super().__init__()
        linears = linears or PlainLinears()
        if callable(attention):
            one: dict[str, Attention] = dict.fromkeys((*ATTENTIONS, "cross"), attention)
            attention = [one] * config.num_layers
        self.config = config
        self.embed = linears.replicated(token_dim, config.hidden_size, bias=True)
        self.condition = SampleConditioning(config.hidden_size, linears)
        self.text = TextConditioning(text_dim, config.hidden_size, linears)
        self.positions = RotaryPositions3D(
            config.hidden_size // config.num_heads, base_fps=config.rope_base_fps
        )
        self.blocks = nn.ModuleDict(
            {str(i): STDiTBlock(config, i, attention[i], linears) for i in range(config.num_layers)}
        )
        self.final = FinalLayer(config.hidden_size, token_dim, linears)

    def forward(self, x: Tensor, c_noise: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, p]`, `c_noise [n]`, `text [L, d]` to `[N, p]`, held as `layout` says."""
        steps = layout.schedule(self.config.of_network())
        phases = Phases(self.positions, x.dtype)
        text = self.text(text, layout)
        condition = self.condition(c_noise, text, layout)
        here = steps[0]
        x = self.embed(layout.switch(x, here, "embed"))
        if self.config.absolute_positions:
            size, base_fps = self.config.hidden_size, self.config.rope_base_fps
            x = x + sincos_positions(here, size, base_fps).to(x.dtype)
        for i, block in enumerate(self.blocks.values()):
            assert isinstance(block, STDiTBlock)
            size = len(block.kinds)
            ahead = steps[i * size : (i + 1) * size]
            x = block(x, condition, text, here, ahead, phases)
            here = ahead[-1]
        return here.switch(self.final(x, condition, here), layout, "final")
