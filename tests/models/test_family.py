"""Wiring tier: sizes and costs of the shipped configurations against published figures."""

from pathlib import Path

import pytest
import yaml

from models.dit import DiTConfig
from models.family import NetworkConfig, config_from_json, num_parameters

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
    ],
)
def test_sizes_are_the_published_ones(name, billions):
    found = num_parameters(shipped(name), token_dim=TOKEN_DIM, text_dim=TEXT_DIM)
    assert found / 1e9 == pytest.approx(billions, rel=0.005)


def test_a_description_makes_the_same_network_again():
    with pytest.raises(KeyError):
        config_from_json({"kind": "unet"})
    assert config_from_json({"kind": "dit", "num_layers": 3}) == DiTConfig(num_layers=3)
