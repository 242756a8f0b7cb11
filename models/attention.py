"""Attention as one callable, `attention(q, k, v, layout) -> out`.

Models take the callable in their constructor and never choose a kernel or a parallel form; both
are decided outside, per layer. `local_attention` is the form for one device.

Shapes: N query tokens, M key tokens, H heads, D head size, B batch, S sequence.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Dense:
    """`q [B, S, H, D]`, `k` and `v` `[B, S_k, H, D]`: every query sees every key of its row."""

    causal: bool = False


@dataclass(frozen=True)
class Run:
    """`num` sequences in a row of the same lengths."""

    num: int
    len_q: int
    len_k: int


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

    @property
    def runs(self) -> tuple[Run, ...]:
        """The sequences, neighbours of equal lengths together: the frames of a video are one."""
        return _runs(self.lens_q, self.lens_k)


# Every layer asks again. (A cached property would lock, which no compiler traces.)
@lru_cache(maxsize=256)
def _runs(lens_q: tuple[int, ...], lens_k: tuple[int, ...]) -> tuple[Run, ...]:
    pairs = groupby(zip(lens_q, lens_k, strict=True))
    return tuple(Run(len(list(same)), *lens) for lens, same in pairs)


Layout = Dense | Packed
Attention = Callable[[Tensor, Tensor, Tensor, Layout], Tensor]


def per_layer(attention: Attention | list[Any], num_layers: int) -> list[Any]:
    """What each layer attends with, of one for all layers or one for each.

    Raises `ValueError` for a list of another length.
    """
    if not isinstance(attention, list):
        return [attention] * num_layers
    if len(attention) != num_layers:
        raise ValueError(f"{len(attention)} attentions were given for {num_layers} layers")
    return attention


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
    runs = layout.runs
    # Split has one backward for all parts; a slice each would cost a whole tensor each.
    parts_q = q.split([run.num * run.len_q for run in runs])
    parts_k, parts_v = (x.split([run.num * run.len_k for run in runs]) for x in (k, v))
    pieces: list[Tensor] = [q] * len(runs)
    for members in equal_lengths(layout):
        rows_q, rows_k, rows_v = (
            _joined([parts[i] for i in members]) for parts in (parts_q, parts_k, parts_v)
        )
        counts = [runs[i].num for i in members]
        first = runs[members[0]]
        out = _batch(rows_q, rows_k, rows_v, sum(counts), first.len_q, first.len_k, layout.causal)
        for i, piece in zip(members, out.split(counts), strict=True):
            pieces[i] = piece.reshape(-1, *q.shape[1:])
    return _joined(pieces) if pieces else q + (k.sum() + v.sum()) * 0


def equal_lengths(layout: Packed) -> list[list[int]]:
    """Runs of equal lengths, as indices: they form one batch, for one call of a kernel."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, run in enumerate(layout.runs):
        groups[run.len_q, run.len_k].append(i)
    return list(groups.values())


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


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
