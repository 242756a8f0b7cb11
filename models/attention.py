"""Attention as one callable, `attention(q, k, v, layout) -> out`.

Models take the callable in their constructor and never choose a kernel or a parallel form; both
are decided outside, per layer. `local_attention` is the form for one device.

Shapes: N query tokens, M key tokens, H heads, D head size, B batch, S sequence.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Dense:
    """`q [B, S, H, D]`, `k` and `v` `[B, S_k, H, D]`: every query sees every key of its row."""

    causal: bool = False


@dataclass(frozen=True)
class Packed:
    """`q [N, H, D]`, `k` and `v` `[M, H, D]`: sequences end to end (THD).

    Sequence i of q attends sequence i of k and nothing else. The lengths are plain integers known
    everywhere, so that no kernel, and later no rank, has to ask for them.
    """

    lens_q: tuple[int, ...]
    lens_k: tuple[int, ...]
    causal: bool = False

    def __post_init__(self) -> None:
        if len(self.lens_q) != len(self.lens_k):
            raise ValueError(
                f"a packed layout pairs sequences: {len(self.lens_q)} of q, {len(self.lens_k)} of k"
            )


Layout = Dense | Packed
Attention = Callable[[Tensor, Tensor, Tensor, Layout], Tensor]


def local_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Scaled dot-product attention on one device, shape of `q`.

    Fewer key heads than query heads are grouped (GQA). A sequence without keys gives zeros.
    Raises `ValueError` for a layout that this form does not serve, or that the tensors do not fit.
    """
    if type(layout) not in (Dense, Packed):
        # What derives from them says that keys lie elsewhere: to attend here alone would be wrong.
        raise ValueError(
            f"attention of one device got a {type(layout).__name__}: give the model the attention "
            "that goes with this layout"
        )
    if isinstance(layout, Dense):
        return _dense(q, k, v, layout.causal)
    if q.shape[0] != sum(layout.lens_q) or k.shape[0] != sum(layout.lens_k):
        raise ValueError(
            f"layout holds {sum(layout.lens_q)} q and {sum(layout.lens_k)} k tokens, "
            f"the tensors {q.shape[0]} and {k.shape[0]}"
        )
    groups = equal_lengths(layout)
    if len(groups) == 1:
        ((len_q, len_k), members) = next(iter(groups.items()))
        out = _batch(q, k, v, len(members), len_q, len_k, layout.causal)
        return out.reshape(q.shape)
    # Split and unbind have one backward for all parts; a slice each would cost a whole tensor each.
    parts_q = q.split(layout.lens_q)
    parts_k, parts_v = k.split(layout.lens_k), v.split(layout.lens_k)
    pieces: list[Tensor] = [q] * len(layout.lens_q)
    for (len_q, len_k), members in groups.items():
        rows_q = torch.cat([parts_q[i] for i in members])
        rows_k = torch.cat([parts_k[i] for i in members])
        rows_v = torch.cat([parts_v[i] for i in members])
        out = _batch(rows_q, rows_k, rows_v, len(members), len_q, len_k, layout.causal)
        for i, piece in zip(members, out.unbind(), strict=True):
            pieces[i] = piece
    return torch.cat(pieces)


def equal_lengths(layout: Packed) -> dict[tuple[int, int], list[int]]:
    """Sequences of equal lengths form one batch: kernels run per distinct length."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, lens in enumerate(zip(layout.lens_q, layout.lens_k, strict=True)):
        groups[lens].append(i)
    return groups


def _batch(
    q: Tensor, k: Tensor, v: Tensor, rows: int, len_q: int, len_k: int, causal: bool
) -> Tensor:
    if len_q == 0 or len_k == 0:
        # Some kernels fault on empty operands. The products keep the autograd graph whole.
        zero = (k.sum() + v.sum()) * 0
        return (q * 0 + zero).view(rows, len_q, *q.shape[1:])
    return _dense(
        q.view(rows, len_q, *q.shape[1:]),
        k.view(rows, len_k, *k.shape[1:]),
        v.view(rows, len_k, *v.shape[1:]),
        causal,
    )


def _dense(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=causal,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)
