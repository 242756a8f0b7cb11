"""Floating-point operations of a network, from its shape alone.

Every product of matrices counts 2 operations a weight and row; norms, activations and rotations,
which are less than a hundredth, are not counted. Attention costs 4*h for each pair of a query and
a key (`q k^T` and the sum of values, 2*h each; Hoffmann et al. 2022, appendix F), and only tokens
of one sample pair. Training costs three times the forward (Kaplan et al. 2020, section 2.1):
recomputed activations are not counted, as is the custom for model FLOPs utilisation.

Legend: n samples, h hidden size, d text features, s and m video and text tokens of a sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from models.conditioning import SCALAR_FEATURES
from models.pack import Grid


@dataclass(frozen=True, kw_only=True)
class Flops:
    """Forward operations of one pack, by what they are spent on."""

    projections: float
    """Linears of self- and cross-attention, text included."""
    self_attention: float
    """Queries times keys, and the sum of values."""
    cross_attention: float
    mlp: float
    conditioning: float
    """Modulation of all blocks, and the vectors that it reads: work per sample, not per token."""
    ends: float
    """Patches to tokens and back."""
    num_tokens: int

    @property
    def forward(self) -> float:
        return (
            self.projections
            + self.self_attention
            + self.cross_attention
            + self.mlp
            + self.conditioning
            + self.ends
        )

    @property
    def training(self) -> float:
        return 3 * self.forward

    @property
    def training_per_token(self) -> float:
        """Per video token."""
        return self.training / self.num_tokens


@dataclass(frozen=True, kw_only=True)
class Widths:
    """What of a network's shape decides its operations."""

    hidden_size: int
    ffn_size: int
    mlp_matrices: int
    kv_size: int
    """Features of all keys of a token."""
    text_size: int
    """Features of the text tokens that keys and values are made of; 0: told no text."""
    projects_text: bool
    """Whether text is brought to `text_size` first."""
    adaln_rank: int
    modulated: int
    """Sub-layers of all blocks that are modulated."""
    full: int = 0
    """Sub-layers of all blocks, by kind: self-attention of all tokens of a sample,"""
    spatial: int = 0
    """of a frame,"""
    temporal: int = 0
    """and of a place through all frames;"""
    cross: int = 0
    """attention to text;"""
    mlp: int = 0
    """MLPs."""


def count_flops(
    widths: Widths,
    *,
    grids: Sequence[Grid],
    lens_text: Sequence[int],
    token_dim: int,
    text_dim: int,
) -> Flops:
    """Operations of a pack of samples of `grids` patches (t, h, w) and `lens_text` text tokens."""
    h, rank, d = widths.hidden_size, widths.adaln_rank, widths.text_size
    lens = [frames * height * width for frames, height, width in grids]
    n, num_tokens = len(lens), sum(lens)
    pairs = (
        widths.full * sum(s * s for s in lens)
        + widths.spatial * sum(s * s // t for s, (t, _, _) in zip(lens, grids, strict=True))
        + widths.temporal * sum(s * t for s, (t, _, _) in zip(lens, grids, strict=True))
    )
    # A sample without text has one null token.
    texts = [max(m, 1) for m in lens_text]
    attentions = widths.full + widths.spatial + widths.temporal
    projections = attentions * (2 * h * h + 2 * h * widths.kv_size) * num_tokens
    projections += widths.cross * 2 * (h * h * num_tokens + d * widths.kv_size * sum(texts))
    if widths.projects_text:
        projections += text_dim * d * sum(lens_text)
    modulation = widths.modulated * (4 * rank * h if rank else 3 * h * h)
    vectors = (2 * SCALAR_FEATURES + h + (d or h) + (3 * h if rank else 0)) * h
    final = 3 * rank * h if rank else 2 * h * h
    cross_pairs = sum(s * m for s, m in zip(lens, texts, strict=True))
    return Flops(
        projections=2.0 * projections,
        self_attention=4.0 * h * pairs,
        cross_attention=4.0 * widths.cross * h * cross_pairs,
        mlp=2.0 * widths.mlp * widths.mlp_matrices * h * widths.ffn_size * num_tokens,
        conditioning=2.0 * n * (modulation + vectors + final),
        ends=2.0 * 2 * token_dim * h * num_tokens,
        num_tokens=num_tokens,
    )
