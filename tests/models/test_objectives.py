"""Wiring tier: EDM against the identities of its paper, and against an exact denoiser."""

import math

import pytest
import torch

from common import rng
from common.errors import ConfigError
from models.objectives.edm import EDMConfig, EDMPrecondition, LogNormalNoise
from models.objectives.loss import Denoiser, Objective, token_noise
from models.objectives.weights import edm_weight
from models.pack import PackLayout

SIGMA = torch.tensor([0.002, 0.1, 0.5, 1.0, 7.0, 80.0], dtype=torch.float64)


def test_network_input_and_target_have_unit_variance():
    # Karras et al. 2022, appendix B.6: the two requirements from which c_in and c_out follow.
    s = EDMPrecondition(0.5)(SIGMA)
    torch.testing.assert_close(s.c_in**2 * (0.25 + SIGMA**2), torch.ones_like(SIGMA))
    target_variance = ((1 - s.c_skip) ** 2 * 0.25 + s.c_skip**2 * SIGMA**2) / s.c_out**2
    torch.testing.assert_close(target_variance, torch.ones_like(SIGMA))
    # c_skip is the one that makes c_out least.
    for shift in (-1e-3, 1e-3):
        c = s.c_skip + shift
        assert ((1 - c) ** 2 * 0.25 + c**2 * SIGMA**2 > s.c_out**2).all()
    torch.testing.assert_close(s.c_noise, SIGMA.log() / 4)


def test_weight_makes_the_raw_error_count_once():
    s = EDMPrecondition(0.5)(SIGMA)
    torch.testing.assert_close(edm_weight(SIGMA, 0.5) * s.c_out**2, torch.ones_like(SIGMA))


def test_noise_levels_are_log_normal():
    ids = [str(i) for i in range(20_000)]
    sigma = LogNormalNoise(-0.4, 1.2).sample(rng.keys(0, "sigma", step=0, sample_ids=ids))
    logs = sigma.double().log()
    assert abs(logs.mean() + 0.4) < 5 * 1.2 / math.sqrt(len(ids))
    assert abs(logs.std() - 1.2) < 0.05


def test_error_of_a_zero_network_is_the_known_one():
    # D = c_skip x for F = 0; for data of variance v its error is (1-c)^2 v + c^2 sigma^2.
    n, dim = 2, 16
    layout = PackLayout.build([(2, 20, 25)] * n, [0] * n, torch.zeros(n))
    keys = rng.keys(3, "noise", step=0, sample_ids=["a", "b"])
    clean = 0.5 * token_noise(rng.keys(3, "data", step=0, sample_ids=["a", "b"]), layout, dim)
    noise = token_noise(keys, layout, dim)
    sigma = torch.tensor([0.3, 2.0])
    objective = Objective.from_config(EDMConfig())
    zero = lambda x, c, text, layout: torch.zeros_like(x)  # noqa: E731
    errors = objective.errors(zero, clean, sigma, noise, torch.zeros(0, 4), layout)
    c_skip = EDMPrecondition(0.5)(sigma).c_skip
    expected = (1 - c_skip) ** 2 * 0.25 + c_skip**2 * sigma**2
    means = torch.stack([part.mean() for part in errors.split(layout.lens)])
    torch.testing.assert_close(means, expected, rtol=0.03, atol=0)


def test_denoiser_scales_what_the_network_sees():
    layout = PackLayout.build([(1, 1, 2), (1, 1, 1)], [0, 0], torch.zeros(2))
    seen = []

    def network(x, c_noise, text, layout):
        seen.append((x, c_noise))
        return torch.ones_like(x)

    x = torch.ones(3, 4, dtype=torch.float64)
    sigma = torch.tensor([1.0, 3.0], dtype=torch.float64)
    precondition = EDMPrecondition(0.5)
    out = Denoiser(network, precondition)(x, sigma, torch.zeros(0, 4), layout)
    s = precondition(sigma)
    rows = torch.tensor([0, 0, 1])
    torch.testing.assert_close(seen[0][0][:, 0], s.c_in[rows])
    torch.testing.assert_close(out[:, 0], (s.c_skip + s.c_out)[rows])


def test_noise_belongs_to_the_sample_not_to_the_pack():
    keys = rng.keys(0, "noise", step=1, sample_ids=["a", "b"])
    both = PackLayout.build([(2, 2, 2), (1, 3, 2)], [0, 0], torch.zeros(2))
    swapped = PackLayout.build([(1, 3, 2), (2, 2, 2)], [0, 0], torch.zeros(2))
    first = token_noise(keys, both, 8).split(both.lens)
    second = token_noise(keys.flip(0), swapped, 8).split(swapped.lens)
    assert torch.equal(first[0], second[1]) and torch.equal(first[1], second[0])


def test_tokens_of_any_width_get_noise():
    layout = PackLayout.build([(1, 2, 2), (1, 1, 1)], [0, 0], torch.zeros(2))
    noise = token_noise(rng.keys(0, "noise", step=1, sample_ids=["a", "b"]), layout, 6)
    assert noise.shape == (5, 6) and len(noise.unique()) == 30


def test_bad_constants_are_refused():
    with pytest.raises(ConfigError, match="sigma_data must be positive, got 0"):
        EDMConfig(sigma_data=0)
    with pytest.raises(ConfigError, match="p_std must be positive, got -1"):
        EDMConfig(p_std=-1)
    with pytest.raises(ConfigError, match="p_mean must be finite, got nan"):
        EDMConfig(p_mean=math.nan)
