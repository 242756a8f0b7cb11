"""Flash attention for the CPU."""

import torch
from torch import Tensor

from parallel.kernels.base import Gradients, wide


class CpuFlashKernel:
    """PyTorch's flash attention for the CPU: the kernel behind its scaled dot-product attention.

    Half types are widened: parts of a ring, each rounded, would sum up to more than twice the error
    of one process. It costs nothing forward, and half as much again backward.
    """

    def refusal(self, q: Tensor, k: Tensor) -> str | None:
        if q.device.type != "cpu":
            return f"runs on the CPU, the tensors lie on {q.device}"
        return None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *_heads_first(q, k, v), 0.0, causal
        )
        return out.transpose(1, 2), lse.transpose(1, 2)

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> Gradients:
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *_heads_first(dout, q, k, v, out, lse), 0.0, causal
        )
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def _heads_first(*tensors: Tensor) -> list[Tensor]:
    return [x.transpose(1, 2).to(wide(x.dtype)) for x in tensors]
