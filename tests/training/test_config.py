"""Wiring tier: impossible settings are refused by name, before anything is built."""

import math

import pytest

from common.errors import ConfigError
from training.config import OptimizerConfig, PowerEMAConfig, SamplesConfig


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"lr": 0.0}, "optimizer.lr must be positive, got 0.0"),
        ({"lr": math.nan}, "optimizer.lr must be positive, got nan"),
        ({"eps": 0.0}, "optimizer.eps must be positive, got 0.0"),
        ({"weight_decay": -0.1}, "optimizer.weight_decay must not be negative, got -0.1"),
        ({"betas": [0.9, 1.0]}, "optimizer.betas must be two numbers"),
        ({"betas": [math.nan, 0.9]}, "optimizer.betas must be two numbers"),
        ({"betas": [0.9]}, "optimizer.betas must be two numbers"),
        ({"clip_grad_norm": math.nan}, "optimizer.clip_grad_norm must be positive, got nan"),
    ],
)
def test_optimizer(overrides, message):
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**overrides)


def test_samples():
    with pytest.raises(ConfigError, match="samples.every must not be negative, got -1"):
        SamplesConfig(every=-1)
    with pytest.raises(ConfigError, match="samples.count must be at least 1, got 0"):
        SamplesConfig(count=0)


def test_seed(make_config):
    make_config(seed=2**63 - 1)
    make_config(seed=-(2**63))
    with pytest.raises(ConfigError, match="seed=9223372036854775808 must lie within 64 bits"):
        make_config(seed=2**63)


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ([0.1, 0.5], r"power_ema.widths=\[0.1, 0.5\]: .* 0.001 to 0.288, got 0.5"),
        ([0.1, 0.1], "power_ema.widths must differ"),
        ([0.1, 0.1000000001], "power_ema.widths must differ"),
    ],
)
def test_widths_of_averages(widths, message):
    with pytest.raises(ConfigError, match=message):
        PowerEMAConfig(widths=widths)
