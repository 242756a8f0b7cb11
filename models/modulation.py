"""Adaptive layer norm: what a sample is told acts on its tokens as shift, scale and gate.

Legend: n samples, N tokens, h hidden size, r rank.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.layers import LayerNorm, Linears
from models.pack import PackLayout

Norm = Callable[[Tensor], Tensor]
LAYER_NORM = LayerNorm()

Modulation = tuple[Tensor, Tensor, Tensor]
"""Shift, scale and gate of one sub-block, each `[n, h]`."""


class AdaLN(nn.Module):
    """The condition to one `Modulation` per sub-block, all zero at first (AdaLN-zero).

    Dense: SiLU and one linear, 3h^2 weights a sub-block (Peebles and Xie 2023, section 3.2).
    With a rank: SiLU, `h -> r -> 3h` for each sub-block, plus a vector `shared [n, 3h]` that is the
    same for all sub-blocks of all blocks (Agarwal et al. 2025, Cosmos, section 5.1.1): 4rh weights.
    """

    def __init__(self, hidden_size: int, parts: int, rank: int, linears: Linears) -> None:
        super().__init__()
        self.parts, self.rank = parts, rank
        if rank:
            # The first halves of all sub-blocks read the same input: one product.
            self.down = linears.replicated(hidden_size, parts * rank, bias=False)
            self.up = nn.ModuleList(
                linears.replicated(rank, 3 * hidden_size, bias=False) for _ in range(parts)
            )
        else:
            self.dense = linears.replicated(hidden_size, 3 * parts * hidden_size, bias=True)

    def forward(self, condition: Tensor, shared: Tensor | None) -> list[Modulation]:
        """`condition [n, h]`; `shared [n, 3h]` goes with a rank."""
        active = F.silu(condition)
        if not self.rank:
            pieces = self.dense(active).chunk(3 * self.parts, dim=-1)
            return [(pieces[i], pieces[i + 1], pieces[i + 2]) for i in range(0, len(pieces), 3)]
        assert shared is not None
        low = self.down(active).chunk(self.parts, dim=-1)
        whole = [up(part) + shared for up, part in zip(self.up, low, strict=True)]
        return [(shift, scale, gate) for shift, scale, gate in (w.chunk(3, dim=-1) for w in whole)]


class FinalLayer(nn.Module):
    """Modulated norm and the projection to patch features; dense or low-rank as the blocks are."""

    def __init__(
        self,
        hidden_size: int,
        token_dim: int,
        linears: Linears,
        rank: int = 0,
        bias: bool = True,
        norm: Norm = LAYER_NORM,
    ) -> None:
        super().__init__()
        self.hidden_size, self.norm = hidden_size, norm
        if rank:
            self.modulation = nn.Sequential(
                linears.replicated(hidden_size, rank, bias=False),
                linears.replicated(rank, 2 * hidden_size, bias=False),
            )
        else:
            self.modulation = linears.replicated(hidden_size, 2 * hidden_size, bias=True)
        self.project = linears.replicated(hidden_size, token_dim, bias=bias)

    def forward(
        self, x: Tensor, condition: Tensor, layout: PackLayout, shared: Tensor | None = None
    ) -> Tensor:
        both = self.modulation(F.silu(condition))
        if shared is not None:
            both = both + shared[:, : 2 * self.hidden_size]
        shift, scale = both.chunk(2, dim=-1)
        return self.project(modulated(x, shift, scale, layout, self.norm))


def modulated(
    x: Tensor, shift: Tensor, scale: Tensor, layout: PackLayout, norm: Norm = LAYER_NORM
) -> Tensor:
    """Norm of `x [N, h]`, then each sample's own `shift` and `scale` `[n, h]`."""
    samples = Samples(layout)
    if isinstance(norm, LayerNorm):
        return _NormModulate.apply(x, shift, scale, samples, norm.eps)
    return samples.add_scaled(samples.spread(shift), norm(x), 1 + scale)


def gated(x: Tensor, gate: Tensor, y: Tensor, layout: PackLayout) -> Tensor:
    """`x + gate * y` with each sample's own gate `[n, h]`."""
    return _Gate.apply(x, gate, y, Samples(layout))


class Samples:
    """Values per sample against tokens of a pack; samples of equal lengths need no copies."""

    def __init__(self, layout: PackLayout) -> None:
        self.segment, self.num, self.size = layout.segment, len(layout.lens), layout.lens[0]
        self.equal = all(size == self.size for size in layout.lens)

    def spread(self, per_sample: Tensor) -> Tensor:
        """`[n, h]` to what broadcasts against tokens as `rows` has them."""
        return per_sample[:, None] if self.equal else per_sample.index_select(0, self.segment)

    def rows(self, x: Tensor) -> Tensor:
        """`[N, h]` to `[n, s, h]` where all samples have s tokens."""
        return x.unflatten(0, (self.num, self.size)) if self.equal else x

    def add_scaled(self, base: Tensor, x: Tensor, factor: Tensor) -> Tensor:
        """`base + x * factor`: `base` as `spread` or `rows` has it, `x [N, h]`, `factor [n, h]`."""
        return torch.addcmul(base, self.rows(x), self.spread(factor)).view_as(x)

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        return (self.rows(x) * self.spread(factor)).view_as(x)

    def sums(self, x: Tensor) -> Tensor:
        """Over each sample's tokens: `[N, h]` to `[n, h]`."""
        if self.equal:
            return self.rows(x).sum(1)
        # As a product: sums of any lengths at once, and in the same order each time.
        member = torch.zeros(self.num, len(x), dtype=x.dtype, device=x.device)
        return member.scatter_(0, self.segment[None], 1) @ x


class _NormModulate(torch.autograd.Function):
    """Layer norm, times `1 + scale`, plus `shift`. Keeps its input, and not what lies between."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor, scale: Tensor, samples: Samples, eps: float):
        normed, mean, inverse = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
        ctx.save_for_backward(x, scale, mean, inverse)
        ctx.samples = samples
        return samples.add_scaled(samples.spread(shift), normed, 1 + scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        (grad,) = grads
        x, scale, mean, inverse = ctx.saved_tensors
        samples, size = ctx.samples, x.shape[-1:]
        normed = ((x - mean) * inverse).to(x.dtype)
        of_normed = samples.times(grad, 1 + scale).to(x.dtype)
        of_x, _, _ = torch.ops.aten.native_layer_norm_backward(
            of_normed, x, size, mean, inverse, None, None, [True, False, False]
        )
        of_shift, of_scale = samples.sums(grad), samples.sums(normed.mul_(grad))
        return of_x, of_shift.to(scale.dtype), of_scale.to(scale.dtype), None, None


class _Gate(torch.autograd.Function):
    """`x + gate * y`. Keeps the gate as it is, and not a copy of it for every token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, y: Tensor, samples: Samples):
        ctx.save_for_backward(gate, y)
        ctx.samples, ctx.dtype = samples, x.dtype
        return samples.add_scaled(samples.rows(x), y, gate)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        (grad,) = grads
        gate, y = ctx.saved_tensors
        of_y, of_gate = ctx.samples.times(grad, gate), ctx.samples.sums(grad * y)
        return grad.to(ctx.dtype), of_gate.to(gate.dtype), of_y.to(y.dtype), None
