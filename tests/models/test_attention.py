"""Wiring tier: local attention, packed against one sequence at a time, outputs and gradients."""

import pytest
import torch

from models.attention import Dense, Packed, local_attention, per_layer


def naive(q, k, v):
    """[S, H, D] of one sequence, written out."""
    heads = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(heads, 1), v.repeat_interleave(heads, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize(
    ("lens_q", "lens_k"),
    [((5, 5, 5), (5, 5, 5)), ((7, 1, 4, 7), (3, 2, 3, 3)), ((6,), (9,)), ((3, 2), (4, 0))],
)
def test_packed_is_each_sequence_alone(lens_q, lens_k, kv_heads):
    torch.manual_seed(0)
    make = lambda n, h: torch.randn(n, h, 8, dtype=torch.float64, requires_grad=True)  # noqa: E731
    q, k, v = make(sum(lens_q), 4), make(sum(lens_k), kv_heads), make(sum(lens_k), kv_heads)
    out = local_attention(q, k, v, Packed(lens_q, lens_k))
    pieces = zip(q.split(lens_q), k.split(lens_k), v.split(lens_k), strict=True)
    expected = torch.cat([naive(*p) if len(p[1]) else p[0] * 0 for p in pieces])
    torch.testing.assert_close(out, expected, atol=1e-13, rtol=0)
    weight = torch.randn_like(out)
    grads = torch.autograd.grad((out * weight).sum(), (q, k, v))
    wanted = torch.autograd.grad((expected * weight).sum(), (q, k, v))
    for got, want in zip(grads, wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-13, rtol=0)


def test_dense_and_causal():
    q, k, v = (torch.randn(2, 6, 4, 8, dtype=torch.float64) for _ in range(3))
    out = local_attention(q, k, v, Dense())
    torch.testing.assert_close(out[1], naive(q[1], k[1], v[1]), atol=1e-13, rtol=0)
    causal = local_attention(q, k, v, Dense(causal=True))
    torch.testing.assert_close(causal[0, :1], v[0, :1], atol=1e-13, rtol=0)
    torch.testing.assert_close(causal[:, -1], out[:, -1], atol=1e-13, rtol=0)


def test_wrong_lengths_are_named():
    x = torch.zeros(5, 1, 8)
    with pytest.raises(ValueError, match="4 q and 5 k tokens, the tensors 5 and 5"):
        local_attention(x, x, x, Packed((4,), (5,)))
    with pytest.raises(ValueError, match="2 of q, 1 of k"):
        Packed((1, 2), (3,))


def test_one_attention_for_all_layers_or_one_for_each():
    other = lambda q, k, v, layout: q  # noqa: E731
    assert per_layer(local_attention, 2) == [local_attention, local_attention]
    assert per_layer([local_attention, other], 2) == [local_attention, other]
    with pytest.raises(ValueError, match="2 attentions were given for 3 layers"):
        per_layer([local_attention, other], 3)
