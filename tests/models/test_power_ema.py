"""Wiring tier: averages of chosen width against the same average tracked all along."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from common.errors import ConfigError, DataError
from models.power_ema import Profile, combination, gamma_of
from parallel.ema_snapshots import reconstruct, save_snapshot
from training.ema import PowerEMA


@pytest.mark.parametrize("width", [0.01, 0.05, 0.1, 0.25])
def test_width_is_the_standard_deviation_of_the_profile(width):
    gamma = gamma_of(width)
    s = (np.arange(400_000) + 0.5) / 400_000
    p = (gamma + 1) * s**gamma / len(s)
    mean = (p * s).sum()
    assert math.sqrt((p * (s - mean) ** 2).sum()) == pytest.approx(width, rel=1e-4)


def test_dot_is_the_integral_of_the_product():
    one, two = Profile(300, 6.94), Profile(500, 16.97)
    s = (np.arange(300_000) + 0.5) / 1000
    values = [(p.gamma + 1) * s**p.gamma / p.step ** (p.gamma + 1) for p in (one, two)]
    assert one.dot(two) == pytest.approx((values[0] * values[1]).sum() / 1000, rel=1e-4)
    assert one.dot(two) == two.dot(one)


def test_an_average_is_its_closed_form():
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    ema = PowerEMA([("w", weight)], [0.1])
    seen = []
    for step in range(1, 41):
        seen.append(math.sin(step))
        weight.data.fill_(seen[-1])
        ema.update({"w": weight}, step)
    power = gamma_of(0.1) + 1
    # Weight of step s: (s / t)^power - ((s - 1) / t)^power, the profile over one step.
    shares = [(s / 40) ** power - ((s - 1) / 40) ** power for s in range(1, 41)]
    expected = sum(a * b for a, b in zip(shares, seen, strict=True))
    assert ema.tracks[0.1]["w"].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("width", [0.03, 0.075, 0.15, 0.2])
@pytest.mark.parametrize("step", [500, 640])
def test_another_width_is_made_of_what_was_stored(width, step, tmp_path):
    # Weights that drift and jitter, as in training.
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(200))
    stored, truth = PowerEMA([("w", weight)], [0.05, 0.1]), PowerEMA([("w", weight)], [width])
    for i in range(1, step + 1):
        moved = torch.randn(200, generator=generator)
        weight.data.add_(moved / math.sqrt(i))
        for ema in (stored, truth):
            ema.update({"w": weight}, i)
        if i % 20 == 0:
            save_snapshot(tmp_path, i, stored.tracks)
    wanted = truth.tracks[width]["w"]
    made = reconstruct(tmp_path, width, step)["w"]
    nearest = min((t["w"] for t in stored.tracks.values()), key=lambda t: (t - wanted).norm())
    error, beside = (made - wanted).norm() / wanted.norm(), (nearest - wanted).norm()
    print(f"width {width} at {step}: {error:.1e}, the nearest track {beside / wanted.norm():.1e}")
    assert error < 0.01 and error < 0.1 * beside / wanted.norm()


def test_what_was_stored_comes_out_as_it_is(tmp_path):
    tracks = {0.05: {"w": torch.tensor([1.0, 2.0])}, 0.1: {"w": torch.tensor([3.0, 5.0])}}
    save_snapshot(tmp_path, 10, tracks)
    later = {0.05: {"w": torch.tensor([7.0, 7.0])}, 0.1: {"w": torch.tensor([9.0, 1.0])}}
    save_snapshot(tmp_path, 20, later)
    torch.testing.assert_close(reconstruct(tmp_path, 0.1, 20)["w"], later[0.1]["w"])
    # What is later than the wanted step has no say.
    torch.testing.assert_close(reconstruct(tmp_path, 0.05, 10)["w"], tracks[0.05]["w"])
    factors = combination([Profile(10, 6.94), Profile(20, 16.97)], Profile(20, 9.0))
    assert sum(factors) == pytest.approx(1)


def test_impossible_requests_are_refused(tmp_path):
    for width in (0.0, 0.3, math.nan):
        with pytest.raises(ConfigError, match=r"width must lie in 0.001 to 0.288"):
            gamma_of(width)
    with pytest.raises(DataError, match=r"no stored averages up to step 5: .*power_ema.widths"):
        reconstruct(tmp_path, 0.1, 5)
