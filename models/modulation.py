"""Adaptive layer norm: what a sample is told acts on its tokens as shift, scale and gate.

Legend: n samples, N tokens, h hidden size, r rank.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.layers import Linears, layer_norm
from models.pack import PackLayout

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
        norm: Callable[[Tensor], Tensor] = layer_norm,
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
    x: Tensor,
    shift: Tensor,
    scale: Tensor,
    layout: PackLayout,
    norm: Callable[[Tensor], Tensor] = layer_norm,
) -> Tensor:
    """Norm of `x [N, h]`, then each sample's own `shift` and `scale` `[n, h]`.

    Fused and added per sample where possible: at small sizes a step is bound by memory traffic.
    """
    return torch.addcmul(layout.spread(shift), norm(x), layout.spread(1 + scale))


def gated(x: Tensor, gate: Tensor, y: Tensor, layout: PackLayout) -> Tensor:
    """`x + gate * y` with each sample's own gate `[n, h]`."""
    return torch.addcmul(x, layout.spread(gate), y)
