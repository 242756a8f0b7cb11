"""Wiring tier: sizes and costs of the shipped configurations against published figures."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from models.attention import Layout, Packed
from models.cosmos import CosmosConfig
from models.dit import DiTConfig
from models.family import (
    NetworkConfig,
    build_network,
    config_from_json,
    network_flops,
    num_parameters,
)
from models.moviegen import MovieGenConfig
from models.pack import PackLayout
from models.stdit import STDiTConfig
from models.wan import WanConfig
from tests.models.packs import make_pack

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "model"
TOKEN_DIM = 64
"""16 latent channels in patches of 1 x 2 x 2."""
TEXT_DIM = 1024
"""Features of T5-11B's embeddings."""


def shipped(name: str) -> NetworkConfig:
    raw = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    return config_from_json({"kind": "dit", **raw})


# The figures hold no fps, no pooled text and, for Movie Gen, no positions: within 0.5 %.
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("dit_7b", 7.23),
        ("dit_28b", 27.0),
        ("dit_7b_dense", 7.17),
        ("moviegen_30b", 33.4),
        ("wan_14b", 14.29),
    ],
)
def test_sizes_are_the_published_ones(name, billions):
    config = shipped(name)
    text_dim = config.text_dim if isinstance(config, WanConfig) else TEXT_DIM
    found = num_parameters(config, token_dim=TOKEN_DIM, text_dim=text_dim)
    assert found / 1e9 == pytest.approx(billions, rel=0.005)


# Operations per token of training, from the published TFLOPS per GPU over tokens per second and GPU
# (blog, table 1: 457 / 8969, 414 / 2933, 435 / 2392, 411 / 994).
@pytest.mark.parametrize(
    ("name", "grid", "gigaflops"),
    [
        ("dit_7b", (32, 16, 16), 50.95),
        ("dit_7b", (32, 48, 48), 141.15),
        ("dit_28b", (32, 16, 16), 181.86),
        ("dit_28b", (32, 48, 48), 413.48),
    ],
)
def test_operations_are_the_published_ones(name, grid, gigaflops):
    flops = network_flops(
        shipped(name), grids=[grid], lens_text=[512], token_dim=TOKEN_DIM, text_dim=TEXT_DIM
    )
    assert flops.training_per_token / 1e9 == pytest.approx(gigaflops, rel=0.012)


def eager(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attention in products that torch's counter sees."""
    assert isinstance(layout, Packed)
    groups = q.shape[1] // k.shape[1]
    out = []
    lens = zip(q.split(layout.lens_q), k.split(layout.lens_k), v.split(layout.lens_k), strict=True)
    for a, b, c in lens:
        b, c = (x.repeat_interleave(groups, dim=1).transpose(0, 1) for x in (b, c))
        out.append(((a.transpose(0, 1) @ b.transpose(1, 2)).softmax(-1) @ c).transpose(0, 1))
    return torch.cat(out)


SMALL = [
    DiTConfig(hidden_size=48, num_layers=2, num_heads=4),
    DiTConfig(hidden_size=48, num_layers=2, num_heads=4, project_text=False, adaln_rank=5),
    DiTConfig(hidden_size=48, num_layers=3, num_heads=4, num_classes=7),
    STDiTConfig(hidden_size=48, num_layers=2, num_heads=4, adaln_rank=3),
    STDiTConfig(
        hidden_size=48, num_layers=3, num_heads=4, zigzag=True, sublayers=["spatial", "mlp"]
    ),
    MovieGenConfig(hidden_size=48, num_layers=2, num_heads=6, num_kv_heads=2, ffn_size=40),
    WanConfig(hidden_size=48, num_layers=2, num_heads=4, ffn_size=40, channels=3, text_dim=16),
    CosmosConfig(
        hidden_size=48,
        num_layers=2,
        num_heads=4,
        adaln_rank=3,
        channels_in=3,
        channels_out=3,
        text_dim=16,
    ),
]


@pytest.mark.parametrize("config", SMALL)
def test_operations_are_those_that_torch_counts(config):
    x, c_noise, text, layout = make_pack(dtype=torch.float32)
    if isinstance(config, DiTConfig) and config.num_classes:
        text = torch.tensor([0, 1, 2])
    model = build_network(config, token_dim=12, text_dim=16, attention=eager)
    with FlopCounterMode(display=False) as counter:
        model(x, c_noise, text, layout)
    flops = network_flops(
        config, grids=layout.grids, lens_text=layout.lens_text, token_dim=12, text_dim=16
    )
    assert flops.forward == counter.get_total_flops()
    assert flops.training_per_token == 3 * flops.forward / layout.num_tokens


def test_a_description_makes_the_same_network_again():
    with pytest.raises(KeyError):
        config_from_json({"kind": "unet"})
    assert config_from_json({"kind": "dit", "num_layers": 3}) == DiTConfig(num_layers=3)


@pytest.mark.parametrize("kind", [DiTConfig, MovieGenConfig, STDiTConfig])
def test_no_text_is_a_learned_token_or_zero(kind):
    sizes: dict[str, Any] = {"hidden_size": 32, "num_layers": 1, "num_heads": 2}
    if kind is MovieGenConfig:
        sizes["num_kv_heads"] = 2
    networks: dict[str, Any] = {
        null: build_network(kind(**sizes, null_text=null), token_dim=8, text_dim=16)
        for null in ("learned", "zero")
    }
    names = {null: dict(n.named_parameters()) for null, n in networks.items()}
    assert set(names["learned"]) - set(names["zero"]) == {"text.null"}
    text = networks["zero"].text
    layout = PackLayout.build([(1, 1, 1), (1, 1, 1)], [2, 0], torch.zeros(2))
    tokens = text(torch.randn(2, 16), layout)
    assert tokens.shape[0] == 3 and not tokens[2].any() and tokens[:2].any()
