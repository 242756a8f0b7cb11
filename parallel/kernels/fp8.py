"""Attention of 8-bit floats: keys and values are rounded before they are sent, not after.

Each head of each rank's block has its own scale, the largest value of it over the largest float8
(e4m3): blocks are rounded apart, so an outlier costs precision in its own block only. What is sent
is a byte an element, and the scales. Sums, the merge and the backward stay as they are in the
wider types.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from models.attention import Packed
from parallel.kernels.base import AnyKernel
from parallel.kernels.cuda import activated_flash, cumulative, rows_of_packed
from parallel.kernels.packed import packed_forward

LARGEST = 448.0
"""Of float8_e4m3fn."""


@dataclass(frozen=True)
class Rounded:
    """`values float8 [N, H, D]` times `scale float32 [G]`, one for each of G groups of heads."""

    values: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x: Tensor, groups: int) -> "Rounded":
        """`x [N, H, D]`, rounded; heads of a group share a scale."""
        grouped = x.float().unflatten(1, (groups, -1))
        none = grouped.new_zeros(groups)
        largest = grouped.abs().amax((0, 2, 3)) if x.shape[0] else none
        # A head of zeros has no largest value to scale by.
        scale = torch.where(largest > 0, largest / LARGEST, 1.0)
        values = (grouped / scale[:, None, None]).clamp(-LARGEST, LARGEST)
        return cls(values.flatten(1, 2).to(torch.float8_e4m3fn), scale)

    def wide(self, dtype: torch.dtype) -> Tensor:
        """`[N, H, D]` of `dtype`."""
        grouped = self.values.to(torch.float32).unflatten(1, (len(self.scale), -1))
        return (grouped * self.scale[:, None, None]).flatten(1, 2).to(dtype)


def packed_bytes(k: Rounded, v: Rounded) -> Tensor:
    """One `uint8` tensor of both, to be sent: gloo and NCCL know bytes, not all know float8."""
    parts = [k.values.view(torch.uint8), v.values.view(torch.uint8), k.scale, v.scale]
    return torch.cat([part.reshape(-1).view(torch.uint8) for part in parts])


def num_bytes(tokens: int, heads: int, head_dim: int) -> int:
    return 2 * tokens * heads * head_dim + 2 * heads * 4


def unpacked_bytes(block: Tensor, heads: int, head_dim: int) -> tuple[Rounded, Rounded]:
    values, scales = block.split([block.numel() - 8 * heads, 8 * heads])
    k, v = values.view(torch.float8_e4m3fn).view(2, -1, heads, head_dim)
    # A slice of bytes need not lie where floats may.
    k_scale, v_scale = scales.clone().view(torch.float32).view(2, heads)
    return Rounded(k, k_scale), Rounded(v, v_scale)


def rounded_forward(
    q: Rounded, k: Rounded, v: Rounded, layout: Packed, kernel: AnyKernel | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`out [N, H, D]` and `lse [N, H]`, as `packed_forward` of `dtype` gives them.

    By FlashAttention 3 where it is active. Elsewhere the values are widened again: as exact, with
    nothing gained in speed, so that all but the kernel is the same.
    """
    if q.values.is_cuda and activated_flash() == "FA3" and len(q.values) and len(k.values):
        return flash3_forward(q, k, v, layout)
    return packed_forward(q.wide(dtype), k.wide(dtype), v.wide(dtype), layout, kernel)


def flash3_forward(q: Rounded, k: Rounded, v: Rounded, layout: Packed) -> tuple[Tensor, Tensor]:
    rows = len(layout.lens_q)
    out, lse, *_ = torch.ops.aten._flash_attention_forward.quantized(
        q.values,
        k.values,
        v.values,
        cumulative(layout.lens_q, q.values.device),
        cumulative(layout.lens_k, q.values.device),
        max(layout.lens_q),
        max(layout.lens_k),
        0.0,
        layout.causal,
        False,
        *(x.scale.expand(rows, -1).contiguous() for x in (q, k, v)),
    )
    heads, tokens = q.values.shape[1], q.values.shape[0]
    return out.float(), rows_of_packed(lse, heads, tokens)
