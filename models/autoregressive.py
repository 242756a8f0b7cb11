"""Autoregressive video transformer over discrete tokens: each is drawn from what came before it.

The second family of Cosmos (Agarwal et al. 2025, "Cosmos world foundation model platform", section
5.2): blocks as in Llama (RMSNorm, SwiGLU, grouped-query attention that is causal), RMSNorm of
queries and keys per head, 3D rotary positions, and attention to text in every block. Tokens are
the codes of a discrete tokenizer in the order (t h w).

Legend: n samples, N tokens, L text tokens, h hidden size, V codes, B rows of equal length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from models.attention import Attention, Dense, Packed, local_attention, per_layer
from models.checks import check_at_least, check_head_dim, check_positive
from models.conditioning import NullText, TextConditioning
from models.flops import Flops
from models.layers import Linears, PlainLinears, RMSNorm, SwiGLU
from models.multihead import CrossAttention, HeadShape, SelfAttention
from models.pack import Grid, PackLayout
from models.patch import Patch
from models.positions import Rotary, RotaryPositions3D, rotate

EPS = 1e-5


@dataclass(kw_only=True)
class AutoregressiveConfig:
    """Shape of an autoregressive transformer."""

    kind: Literal["autoregressive"] = "autoregressive"
    hidden_size: int = 1024
    num_layers: int = 16
    num_heads: int = 16
    num_kv_heads: int = 4
    ffn_size: int = 2816
    """Features between the linears of an MLP, which has three."""
    null_text: NullText = "learned"
    """The token that stands for no text, as in guidance: learned, or zero."""
    rope_base_fps: float = 24.0
    rope_extrapolation: list[float] = field(default_factory=lambda: [1.0, 1.0, 1.0])
    """How many times the trained extent (t, h, w) is to reach: see `RotaryPositions3D`."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "num_kv_heads", "hidden_size", "ffn_size"):
            check_at_least(self, name, 1)
        for name in ("rope_base_fps", "rope_extrapolation"):
            check_positive(self, name)
        check_head_dim(self)
        assert self.heads

    @property
    def patch_size(self) -> Patch:
        """A token is one place of the latents."""
        return 1, 1, 1

    @property
    def heads(self) -> HeadShape:
        """Raises `ConfigError` where key heads do not divide the heads."""
        return HeadShape(
            dim=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            eps=EPS,
        )

    def flops(
        self, *, grids: Sequence[Grid], lens_text: Sequence[int], token_dim: int, text_dim: int
    ) -> Flops:
        """Forward operations of a pack, counted as in `models.flops`; a query of causal attention
        pairs with the keys up to its own. `token_dim`: the codes."""
        h, kv = self.hidden_size, self.heads.width_kv
        lens = [t * height * width for t, height, width in grids]
        texts = [max(m, 1) for m in lens_text]
        num_tokens, layers = sum(lens), self.num_layers
        own = (2 * h * h + 2 * h * kv) * num_tokens
        cross = 2 * h * h * num_tokens + 2 * text_dim * kv * sum(texts)
        pairs = sum(s * (s + 1) // 2 for s in lens)
        cross_pairs = sum(s * m for s, m in zip(lens, texts, strict=True))
        return Flops(
            projections=2.0 * layers * (own + cross),
            self_attention=4.0 * layers * h * pairs,
            cross_attention=4.0 * layers * h * cross_pairs,
            mlp=2.0 * layers * 3 * h * self.ffn_size * num_tokens,
            conditioning=0.0,
            ends=2.0 * h * token_dim * num_tokens,
            num_tokens=num_tokens,
        )


class Cache:
    """What the layers remember of the first `num` tokens of B samples of one size."""

    def __init__(self, text: Tensor, layout: PackLayout, rotary: Rotary) -> None:
        self.rows, self.num = len(layout.grids), 0
        self.len = layout.num_tokens // self.rows
        self.text, self.lens_text = text, layout.cross_attention.lens_k
        self.rotary = rotary
        self._own: dict[str, tuple[Tensor, Tensor]] = {}
        self._text: dict[str, tuple[Tensor, Tensor]] = {}

    def phases(self, new: int) -> Rotary:
        """Of the next `new` tokens, each `[B, new, 1, D/2]`."""
        here = slice(self.num, self.num + new)
        cos, sin = (phase.unflatten(0, (self.rows, -1))[:, here] for phase in self.rotary)
        return cos, sin

    def grow(self, block: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens of a block up to the new ones `[B, new, K, D]`."""
        if block not in self._own:
            shape = (self.rows, self.len, *k.shape[2:])
            self._own[block] = k.new_empty(shape), v.new_empty(shape)
        end = self.num + k.shape[1]
        for kept, new in zip(self._own[block], (k, v), strict=True):
            kept[:, self.num : end] = new
        keys, values = self._own[block]
        return keys[:, :end], values[:, :end]

    def of_text(self, block: str, attention: CrossAttention) -> tuple[Tensor, Tensor]:
        """Keys and values `[L', K, D]` that a block makes of the text."""
        if block not in self._text:
            self._text[block] = attention.keys_values(self.text)
        return self._text[block]


class AutoregressiveBlock(nn.Module):
    """Causal self-attention, cross-attention, SwiGLU; each normed before and added."""

    def __init__(
        self,
        config: AutoregressiveConfig,
        name: str,
        dim_text: int,
        attention: Attention,
        linears: Linears,
    ) -> None:
        super().__init__()
        h, self.name = config.hidden_size, name
        self.norm_self = RMSNorm(h, EPS)
        self.self_attention = SelfAttention(config.heads, attention, linears)
        self.norm_cross = RMSNorm(h, EPS)
        cross = replace(config.heads, dim_kv=dim_text)
        self.cross_attention = CrossAttention(cross, attention, linears)
        self.norm_mlp = RMSNorm(h, EPS)
        self.mlp = SwiGLU(h, config.ffn_size, linears)

    def forward(self, x: Tensor, text: Tensor, layout: PackLayout, rotary: Rotary) -> Tensor:
        """`x [N, h]`, `text [L, d]` to `[N, h]`."""
        x = x + self.self_attention(self.norm_self(x), layout.causal_attention, rotary)
        x = x + self.cross_attention(self.norm_cross(x), text, layout.cross_attention)
        return x + self.mlp(self.norm_mlp(x))

    def extend(self, x: Tensor, rotary: Rotary, cache: Cache) -> Tensor:
        """The next m tokens of B rows, `x [B, m, h]` to `[B, m, h]`; the cache keeps them."""
        rows, new, _ = x.shape
        attention = self.self_attention
        y = self.norm_self(x)
        q, k, v = attention.projected(y, y)
        q, k = rotate(q, *rotary), rotate(k, *rotary)
        k, v = cache.grow(self.name, k, v)
        y = local_attention(q, k, v, Dense(causal=new > 1))
        x = x + attention.out(y.flatten(-2))
        cross = self.cross_attention
        y = self.norm_cross(x).flatten(0, 1)
        k, v = cache.of_text(self.name, cross)
        y = local_attention(cross.queries(y), k, v, Packed((new,) * rows, cache.lens_text))
        x = x + cross.out(y.flatten(-2)).view_as(x)
        return x + self.mlp(self.norm_mlp(x))


class Autoregressive(nn.Module):
    """Tokens of a pack to the logits of each, given those before it in its sample.

    Args:
        config: the shape.
        token_dim: codes V that a token can be.
        text_dim: size of the text embeddings.
        attention: the attention callable, or one per layer.
        linears: who makes the linears.
    """

    def __init__(
        self,
        config: AutoregressiveConfig,
        *,
        token_dim: int,
        text_dim: int,
        attention: Attention | list[Any] = local_attention,
        linears: Linears | None = None,
    ) -> None:
        super().__init__()
        linears = linears or PlainLinears()
        h = config.hidden_size
        self.config = config
        # One row more, for the token before the first.
        self.codes = nn.Embedding(token_dim + 1, h)
        self.text = TextConditioning(text_dim, None, linears, null=config.null_text)
        self.positions = RotaryPositions3D(
            h // config.num_heads,
            base_fps=config.rope_base_fps,
            extrapolation=config.rope_extrapolation,
        )
        # A dict keeps each block's name when a pipeline stage holds only some of them.
        self.blocks = nn.ModuleDict(
            {
                str(i): AutoregressiveBlock(config, str(i), text_dim, one, linears)
                for i, one in enumerate(per_layer(attention, config.num_layers))
            }
        )
        self.norm = RMSNorm(h, EPS)
        self.head = linears.replicated(h, token_dim, bias=False)

    @property
    def start(self) -> int:
        """What stands before a sample's first token."""
        return self.codes.num_embeddings - 1

    def forward(self, before: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`before int64 [N]`, the token before each one (`start` at a sample's beginning), and
        `text [L, d]` to logits `[N, V]`."""
        x = self.codes(before)
        text = self.text(text.to(x.dtype), layout)
        rotary = self.positions(layout, x.dtype)
        for block in self.blocks.values():
            x = block(x, text, layout, rotary)
        return self.head(self.norm(x))

    def begin(self, text: Tensor, layout: PackLayout) -> Cache:
        """For `extend`: samples of one size, of which nothing is there yet."""
        if len(set(layout.grids)) > 1:
            raise ValueError(f"samples of one size grow together, these are {layout.grids}")
        dtype = self.codes.weight.dtype
        text = self.text(text.to(dtype), layout)
        return Cache(text, layout, self.positions(layout, dtype))

    def extend(self, before: Tensor, cache: Cache) -> Tensor:
        """Logits `[B, m, V]` of the next m tokens of B samples, as `forward` has them.

        Args:
            before: `int64 [B, m]`, the token before each of them. After the first call m is 1.
            cache: of the tokens so far; it grows by these.
        """
        new = before.shape[1]
        if cache.num and new > 1:
            raise ValueError(f"{new} tokens at once can only be the first, {cache.num} are there")
        x, rotary = self.codes(before), cache.phases(new)
        for block in self.blocks.values():
            assert isinstance(block, AutoregressiveBlock)
            x = block.extend(x, rotary, cache)
        cache.num += new
        return self.head(self.norm(x))


def before_each(codes: Sequence[Tensor], start: int) -> Tensor:
    """For samples of codes `int64 [t, h, w]`, end to end: the token before each, and it itself,
    `int64 [N, 2]`."""
    pairs = []
    for code in codes:
        flat = code.flatten()
        first = flat.new_full((1,), start)
        pairs.append(torch.stack([torch.cat([first, flat[:-1]]), flat], dim=1))
    return torch.cat(pairs)
