"""Wiring tier: which shapes can be generated, and what is said of the others."""

from typing import Any

import pytest
import torch

from common.errors import ConfigError
from inference.config import GenerateConfig, SamplerConfig
from inference.generate import generate
from inference.loading import Generator
from inference.shape import VideoShape, check_shape
from models.dit import DiTConfig
from models.initialize import initialize
from models.objectives.config import ObjectiveConfig
from models.spec import ModelSpec
from models.text.hashed import HashedTextConfig
from models.tokenizers.causal import CausalConfig, CausalTokenizer


def make_generator(patch: list[int], channels: int = 4, **model: Any) -> Generator:
    spec = ModelSpec(
        model=DiTConfig(hidden_size=24, num_layers=1, num_heads=2, patch=patch, **model),
        objective=ObjectiveConfig(),
        text=HashedTextConfig(dim=16),
        num_frames=5,
        width=32,
        height=32,
        fps=12.0,
    )
    config = CausalConfig(channels=channels, widths=[4], decoder_blocks=0)
    tokenizer = CausalTokenizer(config).eval().requires_grad_(False)
    encoding = spec.encoding(tokenizer, torch.device("cpu"))
    network = spec.network(encoding)
    initialize(network, 0)
    return Generator.around(network.eval(), encoding, spec, 0)


def shape(num_frames: int = 5, width: int = 32, height: int = 32) -> VideoShape:
    return VideoShape(num_frames=num_frames, width=width, height=height, fps=12.0)


@pytest.mark.parametrize(
    ("patch", "asked", "message"),
    [
        ([1, 2, 2], {"num_frames": 7}, "=7 must be 1 plus a multiple of 4; nearest are 5 and 9"),
        ([2, 2, 2], {"num_frames": 9}, "=9 must be 5 plus a multiple of 8; nearest are 5 and 13"),
        ([2, 2, 2], {"num_frames": 12}, "nearest are 5 and 13"),
        ([2, 2, 2], {"num_frames": 1}, "=1 must be 5 plus a multiple of 8; the least is 5"),
        ([1, 2, 2], {"width": 40}, "width=40 must be a multiple of 16; nearest are 32 and 48"),
        ([1, 4, 2], {"height": 48}, "height=48 must be a multiple of 32; nearest are 32 and 64"),
        ([1, 2, 2], {"width": 8}, "width=8 must be a multiple of 16; the least is 16"),
    ],
)
def test_what_does_not_divide_names_the_nearest(patch, asked, message):
    with pytest.raises(ConfigError, match=message):
        check_shape(make_generator(patch), shape(**asked))


@pytest.mark.parametrize(
    ("patch", "frames", "latent"),
    [([1, 2, 2], 1, 1), ([1, 2, 2], 9, 3), ([2, 2, 2], 13, 4), ([3, 1, 1], 9, 3)],
)
def test_what_divides(patch, frames, latent):
    found = check_shape(make_generator(patch), shape(num_frames=frames, width=64))
    assert found == (4, latent, 4, 8)


def test_a_shape_beyond_learned_positions_is_refused():
    generator = make_generator([1, 2, 2], absolute_positions="learned", max_grid=[2, 2, 2])
    assert check_shape(generator, shape()) == (4, 2, 4, 4)
    said = r"9 frames of 32x32 are \(3, 2, 2\) patches .* learned reach \(2, 2, 2\); give a smaller"
    with pytest.raises(ConfigError, match=said):
        check_shape(generator, shape(num_frames=9))


def test_a_temporal_patch_and_odd_features_generate():
    # 3 channels in patches of 1x1x1 make tokens of 3 features; of 2x1x1, of 6.
    sampler = SamplerConfig(num_steps=2)
    for patch in ([1, 1, 1], [2, 1, 1]):
        generator = make_generator(patch, channels=3)
        (video,) = generate(generator, ["a film"], shape(), sampler, seed=0)
        assert video.frames.shape == (5, 32, 32, 3) and video.latents.shape == (3, 2, 4, 4)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"ema_width": 0.9}, "ema_width=0.9: .* must lie in 0.001 to 0.288"),
        (
            {"ema_width": 0.1, "weights": "model"},
            "ema_width=0.1 asks for an average, weights=model",
        ),
    ],
)
def test_averages_that_cannot_be_had_are_refused(asked, message):
    with pytest.raises(ConfigError, match=message):
        GenerateConfig(checkpoint="run", prompt="x", output="x.mp4", **asked)


@pytest.mark.parametrize("name", ["sigma_min", "sigma_max", "rho"])
def test_settings_of_the_other_schedule_are_refused(name):
    value: dict[str, Any] = {name: 3.5}
    changed = SamplerConfig(**value)
    assert changed.path("edm") == "edm" and SamplerConfig().path("flow") == "flow"
    with pytest.raises(ConfigError, match=rf"sampler\.{name}=3.5 is of sampler.schedule=karras"):
        changed.path("flow")
    with pytest.raises(ConfigError, match=rf"sampler\.{name}=3.5"):
        SamplerConfig(schedule="flow", **value).path("edm")
    assert SamplerConfig(schedule="karras", **value).path("flow") == "edm"
