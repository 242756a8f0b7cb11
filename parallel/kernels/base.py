"""What a kernel is."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from models.attention import Packed

Gradients = tuple[Tensor, Tensor, Tensor]
"""Of q, k and v."""


class Kernel(Protocol):
    """Attention of a dense batch, `q [B, S, H, D]`, `k` and `v` `[B, T, K, D]`, all non-empty.

    The features of q, k and v lie side by side in memory; the CPU's flash attention reads other
    strides wrongly and says nothing.
    """

    def refusal(self, q: Tensor, k: Tensor) -> str | None:
        """Why this kernel cannot serve such tensors, of any number of tokens; None where it can."""
        ...

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """`out` in the shape of `q`, its type or `wide`, and `lse [B, S, H]` in `wide`."""
        ...

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> Gradients: ...


@runtime_checkable
class PackedKernel(Protocol):
    """Attention of packed sequences as they lie, `q [N, H, D]`, `k` and `v` `[M, K, D]`."""

    def refusal(self, q: Tensor, k: Tensor) -> str | None: ...

    def packed_forward(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Packed
    ) -> tuple[Tensor, Tensor]:
        """`out` in the shape of `q`, its type or `wide`, and `lse [N, H]` in `wide`."""
        ...

    def packed_backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        layout: Packed,
    ) -> Gradients: ...


AnyKernel = Kernel | PackedKernel


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which to sum: float32 for half types, else the type itself."""
    return torch.promote_types(dtype, torch.float32)
