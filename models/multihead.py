"""Multi-head attention: projections, norms of queries and keys, rotary positions.

Legend: N tokens, M tokens that are attended, H heads, K key heads, D head size.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from common.errors import ConfigError
from models.attention import Attention, Packed
from models.layers import Linears, RMSNorm
from models.positions import Rotary, rotate


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """What the projections of an attention look like."""

    dim: int
    num_heads: int
    num_kv_heads: int | None = None
    """Key and value heads, each shared by a group of query heads (GQA, Ainslie et al. 2023);
    None: as many as query heads."""
    dim_kv: int | None = None
    """Features of the tokens that are attended; None: `dim`."""
    qk_norm: Literal["head", "width", "none"] = "head"
    """RMSNorm of q and k over a head, over all heads together, or none."""
    eps: float = 1e-6
    bias: bool = False

    def __post_init__(self) -> None:
        if self.num_kv_heads is not None and (
            self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads
        ):
            raise ConfigError(
                f"model.num_heads={self.num_heads} is not divisible by "
                f"model.num_kv_heads={self.num_kv_heads}"
            )

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @property
    def width_kv(self) -> int:
        """Features of all keys of a token together."""
        return (self.num_kv_heads or self.num_heads) * self.head_dim


class MultiHead(nn.Module):
    """The projections of an attention; who attends whom is for the classes below."""

    def __init__(self, shape: HeadShape, attention: Attention, linears: Linears) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.norm_whole = shape.qk_norm == "width"
        self.attention = attention
        dim_kv = shape.dim if shape.dim_kv is None else shape.dim_kv
        self.q = linears.column(shape.dim, shape.dim, bias=shape.bias)
        self.k = linears.column(dim_kv, shape.width_kv, bias=shape.bias)
        self.v = linears.column(dim_kv, shape.width_kv, bias=shape.bias)
        self.norm_q, self.norm_k = nn.Identity(), nn.Identity()
        if shape.qk_norm != "none":
            per_head = shape.qk_norm == "head"
            self.norm_q = RMSNorm(shape.head_dim if per_head else shape.dim, shape.eps)
            self.norm_k = RMSNorm(shape.head_dim if per_head else shape.width_kv, shape.eps)
        self.out = linears.row(shape.dim, shape.dim, bias=shape.bias)

    def projected(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`q [N, H, D]` of `x`, `k` and `v` `[M, K, D]` of `source`; q and k normed."""
        return self.queries(x), *self.keys_values(source)

    def queries(self, x: Tensor) -> Tensor:
        """`[N, H, D]`, normed."""
        return self._heads(self.q(x), self.norm_q)

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """`[M, K, D]` each; keys normed."""
        k = self._heads(self.k(source), self.norm_k)
        return k, self.v(source).unflatten(-1, (-1, self.head_dim))

    def _heads(self, x: Tensor, norm: nn.Module) -> Tensor:
        if self.norm_whole:
            return norm(x).unflatten(-1, (-1, self.head_dim))
        return norm(x.unflatten(-1, (-1, self.head_dim)))


class SelfAttention(MultiHead):
    """Attention of a sample's tokens among themselves."""

    def forward(self, x: Tensor, layout: Packed, rotary: Rotary | None) -> Tensor:
        q, k, v = self.projected(x, x)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        return self.out(self.attention(q, k, v, layout).flatten(-2))


class CrossAttention(MultiHead):
    """Attention of a sample's tokens to its own text."""

    def forward(self, x: Tensor, text: Tensor, layout: Packed) -> Tensor:
        q, k, v = self.projected(x, text)
        return self.out(self.attention(q, k, v, layout).flatten(-2))
