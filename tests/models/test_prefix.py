"""Wiring tier: samples of a pack whose first frames are given, through networks and objective."""

from typing import Any

import pytest
import torch

from models.dit import DiTConfig
from models.family import build_network
from models.initialize import initialize
from models.moviegen import MovieGenConfig
from models.objectives.config import ObjectiveConfig
from models.objectives.loss import Denoiser, Objective
from models.pack import PackLayout, Prefix
from models.stdit import STDiTConfig
from tests.models.packs import (
    TEXT_DIM,
    TOKEN_DIM,
    assert_packs_as_alone,
    layout_alone,
    make_pack,
    random_weights,
)

LENS = (2, 0, 1)
SHAPE: dict[str, Any] = {"hidden_size": 48, "num_layers": 2, "num_heads": 4, "prefix": True}
NETWORKS = {
    "dit": DiTConfig(**SHAPE),
    "moviegen": MovieGenConfig(**SHAPE, num_kv_heads=2, ffn_size=40, max_grid=[4, 4, 4]),
    "stdit": STDiTConfig(**SHAPE),
}


def make_network(name: str) -> Any:
    network = build_network(NETWORKS[name], token_dim=TOKEN_DIM, text_dim=TEXT_DIM).double()
    random_weights(network)
    return network


@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_pack_is_its_samples_alone(name):
    torch.manual_seed(3)
    assert_packs_as_alone(make_network(name), *make_pack(prefix_lens=LENS))


@pytest.mark.parametrize("name", list(NETWORKS))
def test_at_first_a_network_does_not_hear_of_it(name):
    # A network that learned without given frames goes on from what it knows.
    network = make_network(name)
    torch.nn.init.zeros_(network.prefix.mask.weight)
    x, c_noise, text, layout = make_pack(prefix_lens=LENS)
    plain = PackLayout.build(layout.grids, layout.lens_text, layout.fps)
    assert torch.equal(network(x, c_noise, text, layout), network(x, c_noise, text, plain))


def test_the_mask_starts_at_zero():
    network: Any = build_network(NETWORKS["dit"], token_dim=TOKEN_DIM, text_dim=TEXT_DIM)
    initialize(network, 0)
    assert not network.prefix.mask.weight.any()


@pytest.mark.parametrize("name", list(NETWORKS))
def test_the_network_hears_which_frames_are_given_and_how_noisy(name):
    network = make_network(name)
    x, c_noise, text, layout = make_pack(prefix_lens=LENS)
    before = network(x, c_noise, text, layout).split(layout.lens)
    for lens, sigma, changed in [
        ((1, 0, 1), [0.3, 0.1, 0.0], [True, False, False]),
        (LENS, [0.3, 0.1, 0.2], [False, False, True]),
        (LENS, [0.3, 9.0, 0.0], [False, False, False]),  # of a sample that is given nothing
    ]:
        told = PackLayout.build(
            layout.grids, layout.lens_text, layout.fps, Prefix(lens, torch.tensor(sigma))
        )
        after = network(x, c_noise, text, told).split(layout.lens)
        assert [not torch.equal(a, b) for a, b in zip(before, after, strict=True)] == changed


def test_a_whole_sample_cannot_be_given():
    with pytest.raises(ValueError, match="a prefix of 3 patches along t leaves nothing to make"):
        make_pack(prefix_lens=(3, 0, 0))


@pytest.mark.parametrize("target", ["edm", "flow", "v", "x0", "epsilon"])
def test_what_is_given_counts_nowhere_and_has_its_own_noise(target):
    objective = Objective(ObjectiveConfig(target=target, sigma_data=0.7))
    clean, _, text, layout = make_pack(prefix_lens=LENS)
    sigma = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
    noise = torch.randn(clean.shape, dtype=torch.float64)
    shown = []

    def network(x, c_noise, text, layout):
        shown.append(x)
        return torch.ones_like(x)

    errors = objective.errors(network, clean, sigma, noise, text, layout)
    given = layout.in_prefix
    assert given.tolist() == [True] * 16 + [False] * 8 + [False] * 8 + [True] * 4 + [False] * 4
    assert not errors[given].any() and (errors[~given] > 0).all()
    # What the network sees of a token is what it would see of one at that token's own level.
    levels = torch.where(given, layout.spread(torch.tensor([0.3, 0.1, 0.0])), layout.spread(sigma))
    scale = objective.precondition(levels).c_in[:, None]
    torch.testing.assert_close(shown[0], scale * (clean + levels[:, None] * noise))


@pytest.mark.parametrize("target", ["edm", "flow"])
def test_losses_of_a_pack_are_those_of_its_samples(target):
    objective = Objective(ObjectiveConfig(target=target, log_variance=False))
    network = make_network("dit")
    clean, _, text, layout = make_pack(prefix_lens=LENS)
    sigma = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
    noise = torch.randn(clean.shape, dtype=torch.float64)
    packed = objective.errors(network, clean, sigma, noise, text, layout)
    parts = zip(clean.split(layout.lens), noise.split(layout.lens), strict=True)
    texts = text.split(list(layout.lens_text))
    alone = [
        objective.errors(network, c, sigma[i : i + 1], n, texts[i], layout_alone(layout, i))
        for i, (c, n) in enumerate(parts)
    ]
    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-10, rtol=0)


def test_the_denoiser_returns_what_is_given():
    x, _, text, layout = make_pack(prefix_lens=LENS)
    denoiser = Denoiser(make_network("dit"), Objective(ObjectiveConfig()).precondition)
    made = denoiser(x, torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64), text, layout)
    given = layout.in_prefix
    assert torch.equal(made[given], x[given]) and not torch.equal(made[~given], x[~given])
