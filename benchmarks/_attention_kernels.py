"""One attention by each kernel: a forward and a backward to be timed."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from common.errors import ConfigError
from models.attention import Packed
from parallel.blocks import merge
from parallel.kernels.choose import kernel_named
from parallel.kernels.cuda import activate_flash, activated_flash, cumulative
from parallel.kernels.fp8 import Rounded, rounded_forward
from parallel.kernels.packed import packed_backward, packed_forward

FP8 = "FP8, FlashAttention 3"


class Unable(Exception):
    """A subject cannot run here; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Self-attention of sequences end to end, without a mask."""

    lens: tuple[int, ...]
    heads: int
    head_dim: int
    device: torch.device
    dtype: torch.dtype = torch.float32

    @property
    def flops(self) -> float:
        """Of a forward: two products, a multiply and an add each."""
        return 4.0 * sum(n * n for n in self.lens) * self.heads * self.head_dim

    @property
    def layout(self) -> Packed:
        return Packed(self.lens, self.lens)

    def tensors(self, num: int) -> list[Tensor]:
        """`[N, H, D]` each."""
        generator = torch.Generator(self.device).manual_seed(0)
        shape = (sum(self.lens), self.heads, self.head_dim)
        return [
            torch.randn(shape, generator=generator, device=self.device).to(self.dtype)
            for _ in range(num)
        ]


@dataclass(frozen=True, kw_only=True)
class Passes:
    forward: Callable[[], object]
    backward: Callable[[], object] | None
    """None where there is none."""
    device: torch.device
    flops: float

    @property
    def unit(self) -> str:
        return "ms" if self.device.type == "cuda" else "CPU ms"


def kernel(problem: Problem, name: str, flash: str | None = None) -> Passes:
    """One of ours; `flash` is the FlashAttention to put behind PyTorch's operators before."""
    q, k, v, dout = problem.tensors(4)
    try:
        if flash is not None:
            activate_flash(flash)
        chosen = kernel_named(name, q, k)
    except ConfigError as error:
        raise Unable(str(error)) from None
    out, lse = packed_forward(q, k, v, problem.layout, chosen)
    out = out.to(q.dtype)
    return Passes(
        forward=lambda: packed_forward(q, k, v, problem.layout, chosen),
        backward=lambda: packed_backward(dout, q, k, v, out, lse, problem.layout, chosen),
        device=problem.device,
        flops=problem.flops,
    )


def rounded(problem: Problem) -> Passes:
    """Forward of values that are rounded already, as they come off the wire."""
    if activated_flash() != "FA3":
        raise Unable("FlashAttention 3 is not active")
    q, k, v = (Rounded.of(x, problem.heads) for x in problem.tensors(3))
    return Passes(
        forward=lambda: rounded_forward(q, k, v, problem.layout, None, problem.dtype),
        backward=None,
        device=problem.device,
        flops=problem.flops,
    )


def blocks(problem: Problem, num: int) -> Passes:
    """What each rank of a ring of `num` computes for its queries, here for all queries."""
    q, k, v, dout = problem.tensors(4)
    (length,) = problem.lens
    parts = list(zip(k.chunk(num), v.chunk(num), strict=True))
    layouts = [Packed((length,), (len(part),)) for part, _ in parts]

    def forward() -> tuple[Tensor, Tensor]:
        total = None
        for (block_k, block_v), layout in zip(parts, layouts, strict=True):
            part = packed_forward(q, block_k, block_v, layout)
            total = part if total is None else merge(*total, *part)
        assert total is not None
        return total[0].to(q.dtype), total[1]

    out, lse = forward()

    def backward() -> tuple[Tensor, list[Tensor]]:
        dq, rest = None, []
        for (block_k, block_v), layout in zip(parts, layouts, strict=True):
            part, dk, dv = packed_backward(dout, q, block_k, block_v, out, lse, layout)
            dq = part if dq is None else dq.add_(part)
            rest += [dk, dv]
        assert dq is not None
        return dq.to(q.dtype), rest

    return Passes(forward=forward, backward=backward, device=problem.device, flops=problem.flops)


def sdpa(problem: Problem, backend: str | None = None) -> Passes:
    """PyTorch's own, one call a sequence; `backend` forces one of its kernels."""
    leaves = [x.requires_grad_() for x in problem.tensors(3)]
    (dout,) = problem.tensors(1)
    chosen = None
    if backend is not None:
        chosen = {"FLASH": SDPBackend.FLASH_ATTENTION, "CUDNN": SDPBackend.CUDNN_ATTENTION}[backend]

    def attend() -> Tensor:
        rows = zip(*(x.split(problem.lens) for x in leaves), strict=True)
        parts = [
            F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in row)) for row in rows
        ]
        return torch.cat([part[0].transpose(0, 1) for part in parts])

    def forward() -> Tensor:
        if chosen is None:
            return attend()
        with sdpa_kernel(chosen):
            return attend()

    try:
        out = forward()
    except RuntimeError as error:
        raise Unable(str(error).splitlines()[0]) from None
    return Passes(
        forward=forward,
        backward=lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True),
        device=problem.device,
        flops=problem.flops,
    )


def transformer_engine(problem: Problem, fp8: bool) -> Passes:
    try:
        te = import_module("transformer_engine.pytorch")
        recipe = import_module("transformer_engine.common.recipe").DelayedScaling(fp8_dpa=True)
    except ImportError as error:
        raise Unable(str(error)) from None
    if fp8 and len(problem.lens) > 1:
        raise Unable("no FP8 for packed sequences in every release; dense is measured")
    leaves = [x.requires_grad_() for x in problem.tensors(3)]
    (dout,) = problem.tensors(1)
    attention = te.DotProductAttention(problem.heads, problem.head_dim, attention_dropout=0.0)
    bounds = cumulative(problem.lens, problem.device)

    def forward() -> Tensor:
        with te.fp8_autocast(enabled=fp8, fp8_recipe=recipe if fp8 else None):
            if len(problem.lens) == 1:
                rows = [x[None] for x in leaves]
                out = attention(*rows, qkv_format="bshd", attn_mask_type="no_mask")
            else:
                out = attention(
                    *leaves,
                    qkv_format="thd",
                    attn_mask_type="padding",
                    cu_seqlens_q=bounds,
                    cu_seqlens_kv=bounds,
                    max_seqlen_q=max(problem.lens),
                    max_seqlen_kv=max(problem.lens),
                )
        return out.reshape(leaves[0].shape)

    out = forward()
    return Passes(
        forward=forward,
        backward=lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True),
        device=problem.device,
        flops=problem.flops,
    )
