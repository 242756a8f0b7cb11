"""Flash attention for the CPU."""

import torch
from torch import Tensor

from parallel.kernels.base import Gradients


class CpuFlashKernel:
    """PyTorch's flash attention for the CPU: the kernel behind its scaled dot-product attention."""

    def refusal(self, q: Tensor, k: Tensor) -> str | None:
        if q.device.type != "cpu":
            return f"runs on the CPU, the tensors lie on {q.device}"
        return None

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
