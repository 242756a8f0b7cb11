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
    num_layers: int
    ffn_size: int
    kv_size: int
    """Features of all keys of a token."""
    mlp_matrices: int
    modulated: int
    """Sub-blocks of a block that are modulated."""
    adaln_rank: int
    text_size: int
    """Features of the text tokens that keys and values are made of; 0: no cross-attention."""
    projects_text: bool
    """Whether text is brought to `text_size` first."""


def count_flops(
    widths: Widths,
    *,
    lens: Sequence[int],
    lens_text: Sequence[int],
    token_dim: int,
    text_dim: int,
) -> Flops:
    """Operations of a pack of samples of `lens` video tokens and `lens_text` text tokens."""
    h, layers, rank, d = widths.hidden_size, widths.num_layers, widths.adaln_rank, widths.text_size
    n, num_tokens = len(lens), sum(lens)
    per_block, cross_pairs, projected = (2 * h * h + 2 * h * widths.kv_size) * num_tokens, 0, 0
    if d:
        # A sample without text has one null token.
        texts = [max(m, 1) for m in lens_text]
        per_block += 2 * h * h * num_tokens + 2 * d * widths.kv_size * sum(texts)
        cross_pairs = sum(s * m for s, m in zip(lens, texts, strict=True))
        projected = text_dim * d * sum(lens_text) if widths.projects_text else 0
    modulation = widths.modulated * (4 * rank * h if rank else 3 * h * h)
    vectors = (2 * SCALAR_FEATURES + h + (d or h) + (3 * h if rank else 0)) * h
    final = 3 * rank * h if rank else 2 * h * h
    return Flops(
        projections=2.0 * (layers * per_block + projected),
        self_attention=4.0 * layers * h * sum(s * s for s in lens),
        cross_attention=4.0 * layers * h * cross_pairs,
        mlp=2.0 * layers * widths.mlp_matrices * h * widths.ffn_size * num_tokens,
        conditioning=2.0 * n * (layers * modulation + vectors + final),
        ends=2.0 * 2 * token_dim * h * num_tokens,
        num_tokens=num_tokens,
    )
