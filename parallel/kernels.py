"""Attention kernels that also give the log-sum-exp, by which partial attentions are merged.

A backward takes the output and log-sum-exp of the *whole* attention, not of the block: then the
gradients of all blocks only add up (Dao 2023, FlashAttention-2, section 3.1.2).

Shapes: B batch, S queries, T keys, H query heads, K key heads, D head size, N and M packed tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from models.attention import Packed, equal_lengths

Gradients = tuple[Tensor, Tensor, Tensor]
"""Of q, k and v."""

FLASH_MIN_KEYS = 64
"""Below, the eager kernel is the faster one on the CPU."""


class Kernel(Protocol):
    """Attention of a dense batch, `q [B, S, H, D]`, `k` and `v` `[B, T, K, D]`, all non-empty.

    The features of q, k and v lie side by side in memory; the CPU's flash attention reads other
    strides wrongly and says nothing.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """`out` in the shape of `q`, its type or `wide`, and `lse [B, S, H]` in `wide`."""
        ...

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> Gradients: ...


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which to sum: float32 for half types, else the type itself."""
    return torch.promote_types(dtype, torch.float32)


class EagerKernel:
    """The formulas written out, in `wide`: any device, and the reference for the others."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        scores = self._scores(q, k, causal)
        lse = scores.logsumexp(-1)  # [B, K, G, S], G query heads to each key head
        out = torch.einsum("bkgst,btkd->bskgd", (scores - lse[..., None]).exp(), v.to(lse.dtype))
        return out.flatten(2, 3), lse.flatten(1, 2).transpose(1, 2)

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> Gradients:
        groups = (k.shape[2], -1)
        dtype = wide(q.dtype)
        delta = (dout.to(dtype) * out.to(dtype)).sum(-1).transpose(1, 2).unflatten(1, groups)
        lse = lse.transpose(1, 2).unflatten(1, groups)
        p = (self._scores(q, k, causal) - lse[..., None]).exp()
        do = dout.to(dtype).unflatten(2, groups)
        dp = torch.einsum("bskgd,btkd->bkgst", do, v.to(dtype))
        ds = p * (dp - delta[..., None]) * q.shape[-1] ** -0.5
        dq = torch.einsum("bkgst,btkd->bskgd", ds, k.to(dtype)).flatten(2, 3)
        dk = torch.einsum("bkgst,bskgd->btkd", ds, q.to(dtype).unflatten(2, groups))
        dv = torch.einsum("bkgst,bskgd->btkd", p, do)
        return dq, dk, dv

    def _scores(self, q: Tensor, k: Tensor, causal: bool) -> Tensor:
        dtype = wide(q.dtype)
        grouped = q.to(dtype).unflatten(2, (k.shape[2], -1))
        scores = torch.einsum("bskgd,btkd->bkgst", grouped, k.to(dtype)) * q.shape[-1] ** -0.5
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        return scores


class CpuFlashKernel:
    """PyTorch's flash attention for the CPU: the kernel behind its scaled dot-product attention."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), 0.0, causal
        )
        return out.transpose(1, 2), lse.transpose(1, 2)

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> Gradients:
        heads_first = [x.transpose(1, 2) for x in (dout, q, k, v, out, lse)]
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *heads_first, 0.0, causal
        )
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def fitting_kernel(q: Tensor, num_keys: int) -> Kernel:
    """What is fastest of the kernels that run here."""
    if q.device.type == "cpu" and num_keys >= FLASH_MIN_KEYS:
        return CpuFlashKernel()
    return EagerKernel()


def packed_forward(
    q: Tensor, k: Tensor, v: Tensor, layout: Packed, kernel: Kernel | None = None
) -> tuple[Tensor, Tensor]:
    """`out` like `q [N, H, D]` and `lse [N, H]`, in `wide` both.

    Sequences of equal lengths run as one batch. Without keys: zeros, and minus infinity.
    """
    dtype = wide(q.dtype)
    out = q.new_zeros(q.shape, dtype=dtype)
    lse = q.new_full(q.shape[:2], -torch.inf, dtype=dtype)
    for len_k, of_q, of_k in _batches(layout):
        chosen = kernel or fitting_kernel(q, len_k)
        part, part_lse = chosen.forward(of_q.read(q), of_k.read(k), of_k.read(v), layout.causal)
        of_q.write(out, part)
        of_q.write(lse, part_lse)
    return out, lse


def packed_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    layout: Packed,
    kernel: Kernel | None = None,
) -> Gradients:
    """Gradients of q, k, v in `wide`; `out` and `lse` are those of the whole attention."""
    dtype = wide(q.dtype)
    dq, dk, dv = (x.new_zeros(x.shape, dtype=dtype) for x in (q, k, v))
    for len_k, of_q, of_k in _batches(layout):
        b_dout, b_q, b_out, b_lse = (of_q.read(x) for x in (dout, q, out, lse))
        chosen = kernel or fitting_kernel(q, len_k)
        grads = chosen.backward(
            b_dout, b_q, of_k.read(k), of_k.read(v), b_out, b_lse, layout.causal
        )
        for rows, whole, grad in zip((of_q, of_k, of_k), (dq, dk, dv), grads, strict=True):
            rows.write(whole, grad)
    return dq, dk, dv


@dataclass(frozen=True)
class _Rows:
    """Sequences of equal lengths among packed tokens `[N, ...]`, as a batch `[B, S, ...]`."""

    spans: list[tuple[int, int]]
    """Start and tokens of each run of neighbours."""
    length: int

    def read(self, x: Tensor) -> Tensor:
        parts = [x[start : start + n] for start, n in self.spans]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        return joined.view(-1, self.length, *x.shape[1:])

    def write(self, x: Tensor, batch: Tensor) -> None:
        pieces = batch.split([n // self.length for _, n in self.spans])
        for (start, n), piece in zip(self.spans, pieces, strict=True):
            x[start : start + n].view(-1, self.length, *x.shape[1:]).copy_(piece)


def _batches(layout: Packed) -> Iterator[tuple[int, _Rows, _Rows]]:
    """Length of the keys, and rows of q and of k, of each batch; kernels fault on empty ones."""
    runs = layout.runs
    tokens_q, tokens_k = [r.num * r.len_q for r in runs], [r.num * r.len_k for r in runs]
    starts_q, starts_k = ([0, *accumulate(tokens)] for tokens in (tokens_q, tokens_k))
    for members in equal_lengths(layout):
        first = runs[members[0]]
        if first.len_q and first.len_k:
            yield (
                first.len_k,
                _Rows([(starts_q[i], tokens_q[i]) for i in members], first.len_q),
                _Rows([(starts_k[i], tokens_k[i]) for i in members], first.len_k),
            )
