"""PyTorch's attention kernels for CUDA: flash and cuDNN in dense batches, flash on packed tokens.

FlashAttention 3 and 4 stand behind the same operators once they are activated (`activate_flash`).
The functions that adapt shapes are pure, and tested without a GPU.
"""

from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from common.errors import ConfigError
from models.attention import Packed
from parallel.kernels.base import Gradients

HALF = (torch.bfloat16, torch.float16)
FLASH_MAX_HEAD, CUDNN_MAX_HEAD = 256, 128


def closed(lse: Tensor) -> Tensor:
    """FlashAttention gives rows without keys plus infinity; merging needs minus infinity."""
    return lse.masked_fill(lse == torch.inf, -torch.inf)


def opened(lse: Tensor) -> Tensor:
    """The inverse of `closed`, for a backward: exp(score - inf) is 0, exp(score + inf) is not."""
    return lse.masked_fill(lse == -torch.inf, torch.inf)


def rows_of_dense(lse: Tensor, batch: int, heads: int, queries: int) -> Tensor:
    """`[B, H, S]`, from cuDNN `[B, H, S, 1]`, to `[B, S, H]`. Raises `ValueError` for others."""
    if lse.shape not in ((batch, heads, queries), (batch, heads, queries, 1)):
        raise ValueError(
            f"log-sum-exp of shape {tuple(lse.shape)}, where [B={batch}, H={heads}, S={queries}] "
            "or one with a last axis of 1 is expected; this PyTorch has another kernel"
        )
    return closed(lse.reshape(batch, heads, queries).transpose(1, 2)).float()


def rows_of_packed(lse: Tensor, heads: int, tokens: int) -> Tensor:
    """`[H, N]` to `[N, H]`. The documentation says `[N, H]`, the kernel gives `[H, N]`: a shape
    that is not this one is refused (`ValueError`) rather than guessed."""
    if lse.shape != (heads, tokens):
        raise ValueError(
            f"log-sum-exp of shape {tuple(lse.shape)}, where [H={heads}, N={tokens}] is expected; "
            "this PyTorch has another kernel"
        )
    return closed(lse.transpose(0, 1)).float()


def activate_flash(version: str) -> None:
    """Puts FlashAttention "FA3" or "FA4" behind PyTorch's operators, for the whole process.

    Raises `ConfigError` where it is not installed or does not serve this GPU.
    """
    from torch.nn.attention import activate_flash_attention_impl, list_flash_attention_impls

    if version not in list_flash_attention_impls():
        known = ", ".join(list_flash_attention_impls()) or "none"
        raise ConfigError(f"attention kernel {version} is not known to this PyTorch: {known}")
    try:
        activate_flash_attention_impl(version)
    except (ImportError, RuntimeError, ModuleNotFoundError) as error:
        raise ConfigError(
            f"attention kernel {version} cannot be activated: {str(error).splitlines()[0]}; "
            "install flash-attn for it, or choose another kernel"
        ) from error


def activated_flash() -> str | None:
    """The implementation that `activate_flash` put in place, if any."""
    from torch.nn.attention import current_flash_attention_impl

    return current_flash_attention_impl()


def _refusal(q: Tensor, k: Tensor, max_head: int) -> str | None:
    if q.device.type != "cuda":
        return f"runs on CUDA, the tensors lie on {q.device}"
    if q.dtype not in HALF:
        return f"takes bfloat16 and float16, not {q.dtype}"
    if q.shape[-1] > max_head or q.shape[-1] % 8:
        return f"takes head sizes that are multiples of 8 up to {max_head}, not {q.shape[-1]}"
    return None


class FlashKernel:
    """FlashAttention on a dense batch."""

    def refusal(self, q: Tensor, k: Tensor) -> str | None:
        return _refusal(q, k, FLASH_MAX_HEAD)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), 0.0, causal
        )
        batch, queries, heads, _ = q.shape
        return out.transpose(1, 2), rows_of_dense(lse, batch, heads, queries)

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> Gradients:
        heads_first = [x.transpose(1, 2) for x in (dout.to(q.dtype), q, k, v, out.to(q.dtype))]
        state, unused = _no_dropout(q.device)
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *heads_first,
            opened(lse).transpose(1, 2).contiguous(),
            None,
            None,
            q.shape[1],
            k.shape[1],
            0.0,
            causal,
            state,
            unused,
        )
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


class CudnnKernel:
    """cuDNN's attention on a dense batch: often the fastest from Hopper on."""

    def refusal(self, q: Tensor, k: Tensor) -> str | None:
        reason = _refusal(q, k, CUDNN_MAX_HEAD)
        if reason is None and torch.cuda.get_device_capability(q.device)[0] < 8:
            return "needs a GPU of compute capability 8 or more"
        return reason

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, True, 0.0, causal
        )
        batch, queries, heads, _ = q.shape
        return out.transpose(1, 2), rows_of_dense(lse, batch, heads, queries)

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> Gradients:
        heads_first = [x.transpose(1, 2) for x in (dout.to(q.dtype), q, k, v, out.to(q.dtype))]
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
        dq, dk, dv = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            *heads_first,
            lse.transpose(1, 2).contiguous().unsqueeze(-1),
            seed,
            seed,
            None,
            None,
            None,
            q.shape[1],
            k.shape[1],
            0.0,
            causal,
        )
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


class VarlenFlashKernel:
    """FlashAttention on packed tokens (THD): one launch for sequences of any lengths."""

    def refusal(self, q: Tensor, k: Tensor) -> str | None:
        return _refusal(q, k, FLASH_MAX_HEAD)

    def packed_forward(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Packed
    ) -> tuple[Tensor, Tensor]:
        if not q.shape[0] or not k.shape[0]:
            return torch.zeros_like(q), q.new_full(q.shape[:2], -torch.inf, dtype=torch.float32)
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, *_bounds(layout, q.device), 0.0, layout.causal, False
        )
        return out, rows_of_packed(lse, q.shape[1], q.shape[0])

    def packed_backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        layout: Packed,
    ) -> Gradients:
        if not q.shape[0] or not k.shape[0]:
            return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        return torch.ops.aten._flash_attention_backward(
            dout.to(q.dtype).contiguous(),
            q,
            k,
            v,
            out.to(q.dtype),
            opened(lse).transpose(0, 1).contiguous(),
            *_bounds(layout, q.device),
            0.0,
            layout.causal,
            *_no_dropout(q.device),
        )


def _no_dropout(device: torch.device) -> tuple[Tensor, Tensor]:
    """The random state that a backward wants and, without dropout, does not read."""
    return (
        torch.zeros(2, dtype=torch.uint64, device=device),
        torch.empty(0, dtype=torch.uint64, device=device),
    )


def _bounds(layout: Packed, device: torch.device) -> tuple[Tensor, Tensor, int, int]:
    """Cumulative lengths of q and k, and the longest of each."""
    return (
        cumulative(layout.lens_q, device),
        cumulative(layout.lens_k, device),
        max(layout.lens_q),
        max(layout.lens_k),
    )


@lru_cache(maxsize=256)
def cumulative(lens: tuple[int, ...], device: torch.device) -> Tensor:
    """`int32 [n + 1]`, from 0."""
    return torch.tensor([0, *accumulate(lens)], dtype=torch.int32, device=device)
