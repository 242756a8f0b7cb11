"""Small layers, and the provider through which a model gets its linears."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linears(Protocol):
    """Makes the linears of a model. A tensor-parallel provider splits what it makes.

    Models infer local sizes with -1, so a provider may return a module that holds only this
    rank's share of the features. Every module maps `[..., in]` to `[..., out]`.
    """

    def column(self, in_features: int, out_features: int, *, bias: bool) -> nn.Module:
        """A linear whose output features may be split over ranks."""
        ...

    def row(self, in_features: int, out_features: int, *, bias: bool) -> nn.Module:
        """A linear whose input features may be split; its output is whole on every rank."""
        ...

    def replicated(self, in_features: int, out_features: int, *, bias: bool) -> nn.Module:
        """A linear that every rank holds whole."""
        ...


class PlainLinears:
    """`torch.nn.Linear` for everything: one device."""

    def column(self, in_features: int, out_features: int, *, bias: bool) -> nn.Module:
        return nn.Linear(in_features, out_features, bias=bias)

    def row(self, in_features: int, out_features: int, *, bias: bool) -> nn.Module:
        return nn.Linear(in_features, out_features, bias=bias)

    def replicated(self, in_features: int, out_features: int, *, bias: bool) -> nn.Module:
        return nn.Linear(in_features, out_features, bias=bias)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis (Zhang and Sennrich 2019, eq. 4)."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class MLP(nn.Module):
    """Linear, GELU, linear. GELU in its tanh form, as in the DiT paper, or exact."""

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        linears: Linears,
        *,
        bias: bool = False,
        exact_gelu: bool = False,
    ) -> None:
        super().__init__()
        self.approximate = "none" if exact_gelu else "tanh"
        self.up = linears.column(dim, hidden_dim, bias=bias)
        self.down = linears.row(hidden_dim, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))`, no biases (Shazeer 2020, "GLU variants", eq. 6)."""

    def __init__(self, dim: int, hidden_dim: int, linears: Linears) -> None:
        super().__init__()
        self.gate = linears.column(dim, hidden_dim, bias=False)
        self.up = linears.column(dim, hidden_dim, bias=False)
        self.down = linears.row(hidden_dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


@dataclass(frozen=True)
class LayerNorm:
    """Layer norm over the last axis without learned scale and shift: AdaLN brings those."""

    eps: float = 1e-6

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=self.eps)


def rms_norm(x: Tensor, eps: float) -> Tensor:
    """RMS norm over the last axis without a learned scale."""
    return F.rms_norm(x, x.shape[-1:], eps=eps)
