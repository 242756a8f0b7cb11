"""Packed sequences through kernels of dense batches, or as they lie where a kernel takes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from models.attention import Packed, equal_lengths
from parallel.kernels.base import AnyKernel, Gradients, PackedKernel, wide
from parallel.kernels.choose import fitting_kernel, native_kernel


def packed_forward(
    q: Tensor, k: Tensor, v: Tensor, layout: Packed, kernel: AnyKernel | None = None
) -> tuple[Tensor, Tensor]:
    """`out` like `q [N, H, D]` and `lse [N, H]`, in `wide` both.

    Sequences of equal lengths run as one batch. Without keys: zeros, and minus infinity.
    """
    dtype = wide(q.dtype)
    kernel = kernel or native_kernel(q, k)
    if isinstance(kernel, PackedKernel):
        out, lse = kernel.packed_forward(q, k, v, layout)
        return out.to(dtype), lse
    out = q.new_zeros(q.shape, dtype=dtype)
    lse = q.new_full(q.shape[:2], -torch.inf, dtype=dtype)
    for len_k, of_q, of_k in _batches(layout):
        chosen = kernel or fitting_kernel(q, k, len_k)
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
    kernel: AnyKernel | None = None,
) -> Gradients:
    """Gradients of q, k, v in `wide`; `out` and `lse` are those of the whole attention."""
    dtype = wide(q.dtype)
    kernel = kernel or native_kernel(q, k)
    if isinstance(kernel, PackedKernel):
        dq, dk, dv = kernel.packed_backward(dout, q, k, v, out, lse, layout)
        return dq.to(dtype), dk.to(dtype), dv.to(dtype)
    dq, dk, dv = (x.new_zeros(x.shape, dtype=dtype) for x in (q, k, v))
    for len_k, of_q, of_k in _batches(layout):
        b_dout, b_q, b_out, b_lse = (of_q.read(x) for x in (dout, q, out, lse))
        chosen = kernel or fitting_kernel(q, k, len_k)
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
