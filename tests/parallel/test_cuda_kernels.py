"""Wiring and GPU tier: what surrounds CUDA's kernels, and, on a GPU, the kernels themselves.

The shapes that the kernels give and want, and what they say of rows without keys, are adapted by
pure functions, which need no GPU. The kernels are compared with the eager one where there is one.
"""

import random

import pytest
import torch

from common.errors import ConfigError
from models.attention import Packed
from parallel.blocks import merge
from parallel.kernels.choose import KERNELS, fitting_kernel, kernel_named, native_kernel
from parallel.kernels.cpu import CpuFlashKernel
from parallel.kernels.cuda import (
    CudnnKernel,
    FlashKernel,
    VarlenFlashKernel,
    activate_flash,
    closed,
    cumulative,
    opened,
    rows_of_dense,
    rows_of_packed,
)
from parallel.kernels.eager import EagerKernel
from parallel.kernels.packed import packed_backward, packed_forward

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
INF = torch.inf


def test_rows_without_keys_weigh_nothing_whatever_the_kernel_says_of_them():
    lse = torch.tensor([[INF, 0.5], [-INF, 2.0]])
    assert closed(lse).tolist() == [[-INF, 0.5], [-INF, 2.0]]
    assert opened(closed(lse)).tolist() == [[INF, 0.5], [INF, 2.0]]
    out = torch.randn(2, 2, 4)
    other, other_lse = torch.randn(2, 2, 4), torch.randn(2, 2)
    merged, total = merge(out, closed(lse), other, other_lse)
    assert torch.equal(merged[:, 0], other[:, 0]) and torch.equal(total[:, 0], other_lse[:, 0])
    # Taken as it came, plus infinity would wipe out the other block.
    spoilt, _ = merge(out, lse, other, other_lse)
    assert not torch.equal(spoilt[0, 0], other[0, 0])


def test_an_opened_row_has_no_gradient():
    scores = torch.randn(3)
    assert (scores - opened(torch.tensor(-INF))).exp().tolist() == [0.0] * 3


@pytest.mark.parametrize("trailing", [(), (1,)])
def test_dense_kernels_give_heads_first_and_cudnn_one_axis_more(trailing):
    lse = torch.arange(24.0).view(2, 3, 4, *trailing)
    rows = rows_of_dense(lse, batch=2, heads=3, queries=4)
    assert rows.shape == (2, 4, 3)
    assert rows[1, 2, 0] == lse.view(2, 3, 4)[1, 0, 2]
    with pytest.raises(ValueError, match=r"shape \(2, 4, 3"):
        rows_of_dense(torch.zeros(2, 4, 3, *trailing), batch=2, heads=3, queries=4)


def test_the_packed_kernel_gives_heads_first():
    lse = torch.arange(10.0).view(2, 5)
    lse[1, 4] = INF
    rows = rows_of_packed(lse, heads=2, tokens=5)
    assert rows.shape == (5, 2) and rows[3, 1] == 8.0 and rows[4, 1] == -INF
    with pytest.raises(ValueError, match=r"shape \(5, 2\), where \[H=2, N=5\] is expected"):
        rows_of_packed(lse.T, heads=2, tokens=5)


def test_cumulative_lengths():
    bounds = cumulative((3, 0, 2), torch.device("cpu"))
    assert bounds.dtype == torch.int32 and bounds.tolist() == [0, 3, 3, 5]


def test_what_serves_is_chosen_and_what_does_not_says_why():
    q = k = torch.zeros(3, 2, 8)
    assert isinstance(fitting_kernel(q, k, 10), EagerKernel)
    assert isinstance(fitting_kernel(q, k, 100), CpuFlashKernel)
    assert native_kernel(q, k) is None
    assert kernel_named("eager", q, k) is KERNELS["eager"]
    for name in ("flash", "flash_varlen", "cudnn"):
        message = rf"{name} runs on CUDA, the tensors lie on cpu; here serve eager, cpu_flash"
        with pytest.raises(ConfigError, match=message):
            kernel_named(name, q, k)
    with pytest.raises(ConfigError, match="kernel flesh is none of eager, cpu_flash, flash"):
        kernel_named("flesh", q, k)
    on_gpu = torch.zeros(3, 2, 12, device="meta")
    assert "runs on CUDA, the tensors lie on meta" in str(KERNELS["cudnn"].refusal(on_gpu, on_gpu))


def test_flash_attention_3_is_not_activated_where_it_is_not_installed():
    with pytest.raises(ConfigError, match="attention kernel FA9 is not known to this PyTorch"):
        activate_flash("FA9")
    with pytest.raises(ConfigError, match="attention kernel FA3 cannot be activated: "):
        activate_flash("FA3")


@gpu
@pytest.mark.parametrize("name", ["flash", "flash_varlen", "cudnn"])
def test_kernels_of_the_gpu_are_attention_and_its_gradients(name):
    kernel = KERNELS[name]
    for seed in range(20):
        rng, generator = random.Random(seed), torch.Generator("cuda").manual_seed(seed)
        lens_q = tuple(rng.randint(0, rng.choice([4, 200])) for _ in range(rng.randint(1, 4)))
        lens_k = tuple(rng.randint(0, rng.choice([4, 200])) for _ in lens_q)
        causal = rng.random() < 0.3
        layout = Packed(lens_q, lens_q if causal else lens_k, causal)
        num_k, group, d = rng.randint(1, 3), rng.randint(1, 3), rng.choice([64, 128])

        def make(n: int, h: int, d: int = d, generator: torch.Generator = generator):
            return torch.randn(n, h, d, generator=generator, device="cuda").bfloat16()

        q, dout = (make(sum(layout.lens_q), num_k * group) for _ in range(2))
        k, v = (make(sum(layout.lens_k), num_k) for _ in range(2))
        wanted, wanted_lse = packed_forward(
            q.double(), k.double(), v.double(), layout, EagerKernel()
        )
        out, lse = packed_forward(q, k, v, layout, kernel)
        torch.testing.assert_close(out.double(), wanted, atol=3e-2, rtol=0)
        torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-2, rtol=0)
        exact = [x.double() for x in (dout, q, k, v)]
        grads = packed_backward(dout, q, k, v, out.bfloat16(), lse, layout, kernel)
        wanted_grads = packed_backward(
            exact[0], exact[1], exact[2], exact[3], wanted, wanted_lse, layout, EagerKernel()
        )
        for got, want in zip(grads, wanted_grads, strict=True):
            scale = max(1.0, float(want.abs().max())) if want.numel() else 1.0
            torch.testing.assert_close(got.double(), want, atol=3e-2 * scale, rtol=0)


@pytest.mark.parametrize("name", ["flash", "cudnn"])
def test_dense_operators_take_what_they_are_given(name):
    """Shapes alone, on tensors without storage: the arguments fit the operators of this PyTorch."""
    kernel = KERNELS[name]
    assert isinstance(kernel, FlashKernel | CudnnKernel)
    q = torch.empty(3, 7, 4, 64, device="meta", dtype=torch.bfloat16)
    k = torch.empty(3, 9, 2, 64, device="meta", dtype=torch.bfloat16)
    out, lse = kernel.forward(q, k, k, False)
    assert (out.shape, lse.shape, lse.dtype) == (q.shape, (3, 7, 4), torch.float32)
    grads = kernel.backward(out, q, k, k, out, lse, False)
    assert [grad.shape for grad in grads] == [q.shape, k.shape, k.shape]


def test_the_packed_operator_takes_what_it_is_given():
    kernel, layout = VarlenFlashKernel(), Packed((7, 0, 5), (4, 3, 5))
    q = torch.empty(12, 4, 64, device="meta", dtype=torch.bfloat16)
    k = torch.empty(12, 2, 64, device="meta", dtype=torch.bfloat16)
    out, lse = kernel.packed_forward(q, k, k, layout)
    assert (out.shape, lse.shape, lse.dtype) == (q.shape, (12, 4), torch.float32)
    grads = kernel.packed_backward(out, q, k, k, out, lse, layout)
    assert [grad.shape for grad in grads] == [q.shape, k.shape, k.shape]
