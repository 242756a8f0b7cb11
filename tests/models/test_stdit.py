"""Wiring tier: the ST-DiT against its formula written out on grids, in double precision."""

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange

from common.errors import ConfigError
from models.initialize import initialize
from models.layers import MLP
from models.multihead import CrossAttention, SelfAttention
from models.stdit import STDiT, STDiTBlock, STDiTConfig
from tests.models.packs import (
    GRIDS,
    TEXT_DIM,
    TOKEN_DIM,
    assert_packs_as_alone,
    make_pack,
    random_weights,
)

ORDERS = {
    "all": ["spatial", "full", "cross", "temporal", "mlp"],
    "v3": ["spatial", "cross", "mlp", "temporal", "cross", "mlp"],
    "temporal first": ["temporal", "mlp", "spatial"],
    "dit": ["full", "cross", "mlp"],
}


def make_model(**overrides) -> STDiT:
    config = STDiTConfig(**{"hidden_size": 48, "num_layers": 2, "num_heads": 4, **overrides})
    model = STDiT(config, token_dim=TOKEN_DIM, text_dim=TEXT_DIM).double()
    random_weights(model)
    return model


def attend(q, k, v):
    """`[..., s, H, D]` each, written out."""
    scores = torch.einsum("...shd,...thd->...hst", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("...hst,...thd->...shd", scores.softmax(-1), v)


def rms(x):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def turned(x, t, h, w, per_frame):
    """3D rotary of one sample `[t, h, w, H, D]`, a pair of features after another."""
    d = x.shape[-1]
    dim_hw = 2 * (d // 6)
    at = []
    for dim, position in (
        (d - 2 * dim_hw, torch.arange(t) * per_frame),
        (dim_hw, torch.arange(h) * 1.0),
        (dim_hw, torch.arange(w) * 1.0),
    ):
        n = dim // 2
        at.append(position.double()[:, None] * 10_000.0 ** -(torch.arange(n).double() / n))
    angle = torch.cat(
        [
            at[0][:, None, None].expand(t, h, w, -1),
            at[1][None, :, None].expand(t, h, w, -1),
            at[2][None, None].expand(t, h, w, -1),
        ],
        -1,
    )[..., None, :]
    pairs = torch.complex(x[..., : d // 2], x[..., d // 2 :])
    pairs = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([pairs.real, pairs.imag], -1)


def block_written_out(block: STDiTBlock, x, condition, text, grid, per_frame):
    """One block on one sample `[t, h, w, c]`: attention by axes of the grid."""
    t, h, w = grid
    modulation = dict(block.modulation.named_parameters())
    chunks = F.silu(condition) @ modulation["dense.weight"].T + modulation["dense.bias"]
    chunks = chunks.chunk(3 * len(block.kinds))
    for i, (kind, layer) in enumerate(zip(block.kinds, block.sublayers, strict=True)):
        shift, scale, gate = chunks[3 * i : 3 * i + 3]
        centred = x - x.mean(-1, keepdim=True)
        y = centred / (x.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        y = y * (1 + scale) + shift
        if isinstance(layer, MLP):
            y = layer(y)
        else:
            assert isinstance(layer, SelfAttention | CrossAttention)
            source = text if kind == "cross" else y
            q, k, v = (
                project(z).unflatten(-1, (4, -1))
                for project, z in ((layer.q, y), (layer.k, source), (layer.v, source))
            )
            norms = dict(layer.named_parameters())
            q = rms(q) * norms["norm_q.weight"]
            k = rms(k) * norms["norm_k.weight"]
            if kind == "cross":
                y = attend(q.flatten(0, 2), k, v).view(t, h, w, 4, -1)
            else:
                there, back = {
                    "full": ("t h w a d -> (t h w) a d", "(t h w) a d -> t h w a d"),
                    "spatial": ("t h w a d -> t (h w) a d", "t (h w) a d -> t h w a d"),
                    "temporal": ("t h w a d -> h w t a d", "h w t a d -> t h w a d"),
                }[kind]
                q, k = (turned(z, t, h, w, per_frame) for z in (q, k))
                y = attend(*(rearrange(z, there) for z in (q, k, v)))
                y = rearrange(y, back, t=t, h=h, w=w)
            y = layer.out(y.flatten(-2))
        x = x + gate * y
    return x


@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("order", list(ORDERS))
def test_blocks_are_their_formula_on_grids(order, zigzag):
    model = make_model(sublayers=ORDERS[order], zigzag=zigzag, absolute_positions="none")
    x, c_noise, text, layout = make_pack()
    out = model(x, c_noise, text, layout)

    texts = model.text(text, layout)
    condition, _ = model.condition(c_noise, layout.fps, layout.text_mean(texts))
    lens_k = layout.cross_attention.lens_k
    parts = []
    for i, (sample, words) in enumerate(
        zip(model.embed(x).split(layout.lens), texts.split(lens_k), strict=True)
    ):
        fps = float(layout.fps[i])
        y = sample.view(*GRIDS[i], -1)
        for block in model.blocks.values():
            assert isinstance(block, STDiTBlock)
            per_frame = 24.0 / fps if fps else 1.0
            y = block_written_out(block, y, condition[i], words, GRIDS[i], per_frame)
        parts.append(y.flatten(0, 2))
    wanted = model.final(torch.cat(parts), condition, layout)
    torch.testing.assert_close(out, wanted, atol=1e-12, rtol=0)


def test_zigzag_trades_places_in_every_second_block():
    config = STDiTConfig(num_layers=3, zigzag=True)
    assert config.of_network() == [
        *("spatial", "full", "cross", "temporal", "mlp"),
        *("temporal", "full", "cross", "spatial", "mlp"),
        *("spatial", "full", "cross", "temporal", "mlp"),
    ]


@pytest.mark.parametrize(("zigzag", "rank"), [(False, 0), (True, 5)])
def test_a_pack_is_its_samples_alone(zigzag, rank):
    assert_packs_as_alone(make_model(zigzag=zigzag, adaln_rank=rank), *make_pack())


def test_training_starts_from_the_identity():
    model = STDiT(
        STDiTConfig(hidden_size=48, num_layers=2, num_heads=4, adaln_rank=3),
        token_dim=TOKEN_DIM,
        text_dim=TEXT_DIM,
    ).double()
    initialize(model, seed=1)
    x, c_noise, text, layout = make_pack()
    assert torch.equal(model(x, c_noise, text, layout), torch.zeros_like(x))


def test_what_each_kind_of_attention_sees():
    """One layer of one kind: a token moves the tokens of its row, and no other."""
    x, c_noise, text, layout = make_pack()
    coordinates = torch.cat([layout.segment[:, None], layout.coordinates], 1)
    touched = 13  # frame 1, row 1, column 1 of the first sample
    for kind in ("full", "spatial", "temporal"):
        model = make_model(sublayers=[kind, "mlp"], num_layers=1)
        other = x.clone()
        other[touched] += 1.0
        moved = (model(other, c_noise, text, layout) - model(x, c_noise, text, layout)).abs()
        same = coordinates == coordinates[touched]
        row = {
            "full": same[:, 0],
            "spatial": same[:, :2].all(1),
            "temporal": same[:, [0, 2, 3]].all(1),
        }[kind]
        assert torch.equal(moved.amax(1) > 1e-9, row), kind


@pytest.mark.parametrize(
    ("sublayers", "message"),
    [
        (["spacial", "mlp"], "spacial is none of them"),
        ([], "choose from full, spatial, temporal, cross, mlp"),
        (["cross", "mlp"], "lets no token see another"),
    ],
)
def test_refused(sublayers, message):
    with pytest.raises(ConfigError, match=message):
        STDiTConfig(sublayers=sublayers)


def test_an_mlp_of_no_feature_is_refused():
    with pytest.raises(ConfigError, match="mlp_ratio=0.01 of model.hidden_size=48 leaves"):
        STDiTConfig(hidden_size=48, num_heads=4, mlp_ratio=0.01)
