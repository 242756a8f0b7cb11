"""The original DiT: images of a class (Peebles and Xie 2023), over packed tokens.

The block is `models.dit.DiTBlock` without cross-attention, with biases and without norms of queries
and keys. It predicts a second set of channels, the variance of its step.

Legend: n samples, N tokens, h hidden size, p patch features.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.attention import Attention, local_attention, per_layer
from models.checks import check_at_least, check_head_dim, check_positive
from models.conditioning import SCALAR_FEATURES, ClassConditioning
from models.dit import DiTBlock
from models.layers import MLP, LayerNorm, Linears, PlainLinears
from models.modulation import FinalLayer
from models.multihead import HeadShape
from models.pack import PackLayout
from models.sinusoid import sinusoid


@dataclass(kw_only=True)
class ImageDiTConfig:
    """Shape of an original DiT; the defaults are those of DiT-XL/2."""

    hidden_size: int = 1152
    num_layers: int = 28
    num_heads: int = 16
    channels_in: int = 4
    channels_out: int = 8
    patch_px: int = 2
    """Side of a patch, in latent pixels."""
    num_classes: int = 1000
    eps_mlp: float = 1e-6
    """Of the norm before the MLP. The other norms have 1e-6."""

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "num_heads", "channels_in", "channels_out"):
            check_at_least(self, name, 1)
        for name in ("patch_px", "num_classes"):
            check_at_least(self, name, 1)
        check_positive(self, "eps_mlp")
        check_head_dim(self, rotary=False)


def image_positions(layout: PackLayout, hidden_size: int) -> Tensor:
    """`[N, h]`: sinusoids of the column, then of the row."""
    row, column = layout.coordinates[:, 1], layout.coordinates[:, 2]
    half = hidden_size // 2
    return torch.cat([sinusoid(column, half), sinusoid(row, half)], dim=-1)


class ImageDiT(nn.Module):
    """Tokens of a pack of images to tokens of twice the channels."""

    def __init__(
        self,
        config: ImageDiTConfig,
        *,
        attention: Attention | list[Attention] = local_attention,
        linears: Linears | None = None,
    ) -> None:
        super().__init__()
        linears = linears or PlainLinears()
        h = config.hidden_size
        attentions = per_layer(attention, config.num_layers)
        self.config = config
        self.embed = linears.replicated(config.channels_in * config.patch_px**2, h, bias=True)
        self.time = nn.ModuleList(
            [
                linears.replicated(SCALAR_FEATURES, h, bias=True),
                linears.replicated(h, h, bias=True),
            ]
        )
        self.classes = ClassConditioning(config.num_classes, h)
        heads = HeadShape(dim=h, num_heads=config.num_heads, qk_norm="none", bias=True)
        norm = LayerNorm(config.eps_mlp)
        self.blocks = nn.ModuleDict()
        for i in range(config.num_layers):
            mlp = MLP(h, 4 * h, linears, bias=True)
            self.blocks[str(i)] = DiTBlock(heads, None, mlp, 0, attentions[i], linears, norm)
        self.final = FinalLayer(h, config.channels_out * config.patch_px**2, linears)

    def forward(self, x: Tensor, timestep: Tensor, labels: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, channels_in * patch]`, `timestep [n]` from 0 (clean) to 999, `labels [n]` with
        `num_classes` for none, to `[N, channels_out * patch]`."""
        first, second = self.time
        features = sinusoid(timestep, SCALAR_FEATURES, cosine_first=True, last_is_slowest=True)
        condition = second(F.silu(first(features.to(x.dtype)))) + self.classes(labels)
        x = self.embed(x) + image_positions(layout, self.config.hidden_size).to(x.dtype)
        for block in self.blocks.values():
            x = block(x, condition, None, None, layout, None)
        return self.final(x, condition, layout)
