"""Attention written out."""

import torch
from torch import Tensor

from parallel.kernels.base import Gradients, wide


class EagerKernel:
    """The formulas written out, in `wide`: any device, and the reference for the others."""

    def refusal(self, q: Tensor, k: Tensor) -> str | None:
        return None

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
