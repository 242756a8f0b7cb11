"""TransformerEngine's own context parallelism as one more attention over ranks.

It serves fewer cases than `parallel.context`: each is refused by name before anything is sent.
Where a length does not divide, TransformerEngine itself rounds it down and says nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from common.errors import ConfigError
from models.attention import Layout, local_attention
from parallel.context import Comm
from parallel.groups import Groups
from parallel.kernels.cuda import HALF, cumulative
from parallel.layout import ShardedDense, ShardedPacked

SERVED: tuple[Comm, ...] = ("p2p", "all_gather", "a2a", "a2a+p2p")


@dataclass(frozen=True, kw_only=True)
class Heads:
    num_q: int
    num_k: int
    head_dim: int


def refusal(
    layout: ShardedPacked | ShardedDense, heads: Heads, comm: Comm, ulysses: int, cp: int, fp8: bool
) -> str | None:
    """Why TransformerEngine cannot serve this over `cp` ranks; None where it can.

    `ulysses` is the number of ranks among which heads are exchanged, where `comm` exchanges them.
    """
    if comm not in SERVED:
        return f"does not know comm={comm}, but {', '.join(SERVED)}"
    if layout.causal:
        return "wants first and last chunks in pairs on each rank for causal attention"
    if isinstance(layout, ShardedDense):
        lens_q, lens_k = [sum(layout.sizes_q)], [sum(layout.sizes_k)]
    else:
        lens_q, lens_k = whole_lens(layout.parts_q), whole_lens(layout.parts_k)
        if fp8:
            return "has no FP8 for packed sequences over ranks"
    if list(lens_q) != list(lens_k):
        return "serves self-attention; other keys are attended locally, whole on every rank"
    odd = [n for n in lens_q if n % (2 * cp)]
    if odd:
        return f"wants lengths that are multiples of 2 x cp = {2 * cp}, not {odd[0]}"
    split = cp if comm == "a2a" else ulysses if comm.startswith("a2a") else 1
    for name, count in (("heads", heads.num_q), ("key heads", heads.num_k)):
        if count % split:
            return f"wants {name} that {split} ranks divide, not {count}"
    return None


def whole_lens(parts: Sequence[Sequence[int]]) -> list[int]:
    return [sum(lens) for lens in zip(*parts, strict=True)]


class TransformerEngineAttention:
    """`attention(q, k, v, layout)` for one layer, over the context-parallel ranks of `groups`.

    A plain layout is attended locally, as `ContextAttention` does: text is whole on every rank.
    With `fp8` attention runs in 8 bits under TransformerEngine's delayed scaling, forward and
    backward.

    Raises `ConfigError` where the package is missing, and for a layout that it does not serve.
    """

    def __init__(self, groups: Groups, heads: Heads, *, comm: Comm, fp8: bool = False) -> None:
        try:
            te: Any = import_module("transformer_engine.pytorch")
        except ImportError as error:
            raise ConfigError(
                f"attention by TransformerEngine needs its package ({error}): install "
                "transformer-engine[pytorch], or leave the attention to vfm"
            ) from None
        self._heads, self._fp8 = heads, fp8
        self._comm: Comm = comm
        self._topology = groups.topology
        self._te = te
        self._attention = te.DotProductAttention(
            num_attention_heads=heads.num_q,
            kv_channels=heads.head_dim,
            num_gqa_groups=heads.num_k,
            attention_dropout=0.0,
            attn_mask_type="no_mask",
        )
        if groups.cp is not None:
            hybrid = comm == "a2a+p2p" and groups.ulysses is not None and groups.ring is not None
            self._attention.set_context_parallel_group(
                [groups.ulysses, groups.ring] if hybrid else groups.cp,
                list(groups.topology.ranks_of("cp")),
                torch.cuda.Stream(),
                comm if hybrid or "+" not in comm else "p2p" if groups.ring else "a2a",
            )

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        if not isinstance(layout, ShardedPacked | ShardedDense):
            return local_attention(q, k, v, layout)
        self._check(q, layout)
        with self._te.fp8_autocast(enabled=self._fp8, fp8_recipe=self._recipe()):
            if isinstance(layout, ShardedDense):
                out = self._attention(q, k, v, qkv_format="bshd", attn_mask_type="no_mask")
            else:
                lens = tuple(whole_lens(layout.parts_q))
                bounds = cumulative(lens, q.device)
                out = self._attention(
                    q,
                    k,
                    v,
                    qkv_format="thd",
                    attn_mask_type="padding",
                    cu_seqlens_q=bounds,
                    cu_seqlens_kv=bounds,
                    cu_seqlens_q_padded=bounds,
                    cu_seqlens_kv_padded=bounds,
                    max_seqlen_q=max(lens),
                    max_seqlen_kv=max(lens),
                )
        return out.reshape(q.shape)

    def _check(self, q: Tensor, layout: ShardedPacked | ShardedDense) -> None:
        cp, ulysses = self._topology.cp, self._topology.ulysses
        reason = refusal(layout, self._heads, self._comm, ulysses, cp, self._fp8)
        if q.device.type != "cuda" or q.dtype not in HALF:
            reason = f"takes bfloat16 and float16 on CUDA, not {q.dtype} on {q.device}"
        if reason is not None:
            raise ConfigError(f"TransformerEngine {reason}; leave this attention to vfm")

    def _recipe(self) -> Any:
        if not self._fp8:
            return None
        return import_module("transformer_engine.common.recipe").DelayedScaling(fp8_dpa=True)
