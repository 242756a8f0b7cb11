"""Wiring tier: the Movie Gen block against its formula, and a pack against its samples alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from common.errors import ConfigError
from models.initialize import initialize
from models.moviegen import MovieGen, MovieGenBlock, MovieGenConfig
from tests.models.packs import TEXT_DIM, TOKEN_DIM, assert_packs_as_alone, make_pack, random_weights


def make_model(dtype: torch.dtype = torch.float64) -> MovieGen:
    config = MovieGenConfig(
        hidden_size=48, num_layers=2, num_heads=6, num_kv_heads=2, ffn_size=40, max_grid=[3, 4, 4]
    )
    model = MovieGen(config, token_dim=TOKEN_DIM, text_dim=TEXT_DIM).to(dtype)
    random_weights(model)
    return model


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_pack_is_its_samples_alone(dtype):
    assert_packs_as_alone(make_model(dtype), *make_pack(dtype=dtype))


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """6 query heads of size 8, each 3 sharing one of 2 key heads; one sample."""
    out = []
    for head in range(6):
        of_q, of_k = slice(head * 8, head * 8 + 8), slice(head // 3 * 8, head // 3 * 8 + 8)
        out.append((q[:, of_q] @ k[:, of_k].T / 8**0.5).softmax(-1) @ v[:, of_k])
    return torch.cat(out, dim=-1)


def test_a_block_is_its_formula_written_out():
    model = make_model()
    block = model.blocks["1"]
    assert isinstance(block, MovieGenBlock)
    _, _, _, layout = make_pack()
    torch.manual_seed(2)
    x = torch.randn(layout.num_tokens, 48, dtype=torch.float64)
    text = torch.randn(sum(layout.cross_attention.lens_k), TEXT_DIM, dtype=torch.float64)
    condition = torch.randn(3, 48, dtype=torch.float64)
    out = block(x, condition, text, layout).split(layout.lens)

    w = dict(block.named_parameters())
    six = F.silu(condition) @ w["modulation.dense.weight"].T + w["modulation.dense.bias"]
    texts = text.split(layout.cross_attention.lens_k)
    for i, h in enumerate(x.split(layout.lens)):
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = six[i].chunk(6)

        def part(name: str, value: Tensor) -> Tensor:
            return value @ w[f"{name}.weight"].T

        y = rms(h) * (1 + scale_a) + shift_a
        qkv = [part(f"self_attention.{n}", y) for n in "qkv"]
        h = h + gate_a * part("self_attention.out", attend(*qkv))
        y = part("cross_attention.q", rms(h) * w["norm_cross.weight"])
        kv = [part(f"cross_attention.{n}", texts[i]) for n in "kv"]
        h = h + part("cross_attention.out", attend(y, *kv))
        # The MLP adds to what cross-attention gave, not to what was before it.
        y = rms(h) * (1 + scale_m) + shift_m
        h = h + gate_m * part("mlp.down", F.silu(part("mlp.gate", y)) * part("mlp.up", y))
        torch.testing.assert_close(out[i], h, atol=1e-12, rtol=0)


def test_positions_are_added_before_every_block():
    model = make_model()
    x, c_noise, text, layout = make_pack()
    seen = []
    for block in model.blocks.values():
        block.register_forward_hook(lambda _, inputs, out: seen.append((inputs[0], out)))
    model(x, c_noise, text, layout)
    positions = model.learned_positions(layout)
    table = model.learned_positions
    t, h, w = layout.coordinates[13].tolist()
    torch.testing.assert_close(positions[13], table.t[t] + table.h[h] + table.w[w])
    torch.testing.assert_close(seen[0][0], model.embed(x) + positions)
    torch.testing.assert_close(seen[1][0], seen[0][1] + positions)


def test_starts_by_predicting_zero():
    model = make_model(torch.float32)
    initialize(model, seed=0)
    out = model(*make_pack(dtype=torch.float32))
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_kv_heads": 4}, "num_heads=6 is not divisible by model.num_kv_heads=4"),
        ({"num_kv_heads": 0}, "num_kv_heads must be at least 1, got 0"),
        ({"hidden_size": 50}, "hidden_size=50 is not divisible by model.num_heads=6"),
        ({"ffn_size": 0}, "ffn_size must be at least 1, got 0"),
    ],
)
def test_impossible_shapes_are_refused(overrides, message):
    shape = {"hidden_size": 48, "num_heads": 6, "num_kv_heads": 2, **overrides}
    with pytest.raises(ConfigError, match=message):
        MovieGenConfig(**shape)
