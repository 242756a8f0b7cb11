"""Wiring tier: kernels with log-sum-exp, and the merge, against attention written out."""

import math
import random

import pytest
import torch
from torch import Tensor

from models.attention import Packed, local_attention
from parallel.blocks import merge
from parallel.kernels.cpu import CpuFlashKernel
from parallel.kernels.eager import EagerKernel
from parallel.kernels.packed import packed_backward, packed_forward

KERNELS = [EagerKernel(), CpuFlashKernel(), None]


def scores_lse(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """`[S, H]` of one sequence."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = torch.einsum("shd,thd->sht", q, k) / math.sqrt(q.shape[-1])
    if causal:
        s, t = torch.arange(q.shape[0])[:, None, None], torch.arange(k.shape[0])
        scores = scores.where(t <= s, -torch.inf)
    return scores.logsumexp(-1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_are_attention_and_its_gradients(kernel):
    for seed in range(40):
        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        lens_q = tuple(rng.randint(0, rng.choice([4, 80])) for _ in range(rng.randint(1, 4)))
        lens_k = tuple(rng.randint(0, rng.choice([4, 80])) for _ in lens_q)
        causal = rng.random() < 0.3
        layout = Packed(lens_q, lens_q if causal else lens_k, causal)
        num_k, group, d = rng.randint(1, 3), rng.randint(1, 3), rng.choice([4, 8])
        make = lambda n, h: torch.randn(n, h, d, generator=generator, dtype=torch.float64)  # noqa: B023, E731
        q, dout = (make(sum(layout.lens_q), num_k * group) for _ in range(2))
        k, v = (make(sum(layout.lens_k), num_k) for _ in range(2))
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        wanted = local_attention(leaves[0], leaves[1], leaves[2], layout)
        wanted_grads = torch.autograd.grad((wanted * dout).sum(), leaves)
        out, lse = packed_forward(q, k, v, layout, kernel)
        torch.testing.assert_close(out, wanted.detach(), atol=1e-13, rtol=0)
        pieces = zip(q.split(layout.lens_q), k.split(layout.lens_k), strict=True)
        wanted_lse = torch.cat([scores_lse(a, b, causal) for a, b in pieces])
        torch.testing.assert_close(lse, wanted_lse, atol=1e-13, rtol=0)
        grads = packed_backward(dout, q, k, v, out, lse, layout, kernel)
        for got, want in zip(grads, wanted_grads, strict=True):
            torch.testing.assert_close(got, want, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_half_types_give_sums_in_float32(kernel):
    q, k, v = (torch.randn(70, 2, 8).bfloat16() for _ in range(3))
    layout = Packed((70,), (70,))
    out, lse = packed_forward(q, k, v, layout, kernel)
    grads = packed_backward(q, q, k, v, out.bfloat16(), lse, layout, kernel)
    assert {x.dtype for x in (out, lse, *grads)} == {torch.float32}
    exact, _ = packed_forward(q.double(), k.double(), v.double(), layout)
    torch.testing.assert_close(out.double(), exact, atol=1e-2, rtol=0)


def test_merge_is_attention_over_both():
    generator = torch.Generator().manual_seed(0)
    make = lambda n: torch.randn(n, 2, 8, generator=generator, dtype=torch.float64)  # noqa: E731
    q, k, v = make(6), make(9), make(9)
    whole = packed_forward(q, k, v, Packed((6,), (9,)))
    for cut in (0, 1, 4, 9):
        first = packed_forward(q, k[:cut], v[:cut], Packed((6,), (cut,)))
        second = packed_forward(q, k[cut:], v[cut:], Packed((6,), (9 - cut,)))
        for got, want in zip(merge(*first, *second), whole, strict=True):
            torch.testing.assert_close(got, want, atol=1e-14, rtol=0)
    none = packed_forward(q, k[:0], v[:0], Packed((6,), (0,)))
    out, lse = merge(*none, *none)
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, torch.full_like(lse, -torch.inf))
