"""Wiring tier: rounding to 8 bits, as it is sent, and attention of it."""

import pytest
import torch

from models.attention import Packed
from parallel.kernels.fp8 import (
    LARGEST,
    Rounded,
    flash3_forward,
    num_bytes,
    packed_bytes,
    rounded_forward,
    unpacked_bytes,
)
from parallel.kernels.packed import packed_forward


def test_the_largest_value_of_a_head_is_kept_and_each_head_has_its_own():
    x = torch.randn(50, 4, 16)
    x[:, 1] *= 1e5
    rounded = Rounded.of(x, 4)
    assert rounded.values.dtype == torch.float8_e4m3fn
    torch.testing.assert_close(rounded.scale, x.abs().amax((0, 2)) / LARGEST)
    back = rounded.wide(torch.float32)
    # e4m3 has 3 bits of mantissa: a relative error of 1/16, or of the smallest steps of a head.
    limit = torch.maximum(x.abs() / 16, rounded.scale[:, None] * 2.0**-9)
    assert ((back - x).abs() <= limit).all()
    whole = Rounded.of(x, 1).wide(torch.float32)
    assert (back[:, 0] - x[:, 0]).abs().mean() < (whole[:, 0] - x[:, 0]).abs().mean() / 2


@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_bytes_there_and_back(tokens):
    k, v = (Rounded.of(torch.randn(tokens, 3, 8), 3) for _ in range(2))
    block = packed_bytes(k, v)
    assert block.dtype == torch.uint8 and block.numel() == num_bytes(tokens, 3, 8)
    for sent, came in zip((k, v), unpacked_bytes(block, 3, 8), strict=True):
        assert torch.equal(sent.wide(torch.float32), came.wide(torch.float32))
    # A part of a larger buffer does not start where a float may.
    part = torch.cat([torch.zeros(1, dtype=torch.uint8), block])[1:]
    assert torch.equal(unpacked_bytes(part, 3, 8)[1].scale, v.scale)


def test_a_head_of_zeros():
    rounded = Rounded.of(torch.zeros(5, 2, 8), 2)
    assert rounded.scale.tolist() == [1.0, 1.0] and not rounded.wide(torch.float32).any()


def test_attention_of_rounded_values_is_that_of_the_values_they_stand_for():
    q, k, v = torch.randn(9, 4, 8), torch.randn(12, 2, 8), torch.randn(12, 2, 8)
    layout = Packed((5, 4), (12, 0))
    q8, k8, v8 = (Rounded.of(x, 2) for x in (q, k, v))
    out, lse = rounded_forward(q8, k8, v8, layout, None, torch.float32)
    q_wide, k_wide, v_wide = (x.wide(torch.float32) for x in (q8, k8, v8))
    wanted = packed_forward(q_wide, k_wide, v_wide, layout)
    assert torch.equal(out, wanted[0]) and torch.equal(lse, wanted[1])
    exact, _ = packed_forward(q.double(), k.double(), v.double(), layout)
    error = float((out[:5].double() - exact[:5]).norm() / exact[:5].norm())
    assert 0.005 < error < 0.1


def test_the_operator_takes_what_it_is_given():
    """Shapes alone, on tensors without storage."""

    def rounded(tokens: int, heads: int) -> Rounded:
        values = torch.empty(tokens, heads, 64, device="meta", dtype=torch.float8_e4m3fn)
        return Rounded(values, torch.empty(2, device="meta"))

    out, lse = flash3_forward(rounded(12, 4), rounded(9, 2), rounded(9, 2), Packed((7, 5), (4, 5)))
    assert (out.shape, out.dtype, lse.shape) == ((12, 4, 64), torch.float32, (12, 4))
