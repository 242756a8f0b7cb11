"""Settings: what is refused, and that the message names the value and the mend."""

import math

import pytest

from common.errors import ConfigError
from dataloading.config import Compression, LoaderConfig, target_size


def config(**changes) -> LoaderConfig:
    values = dict(path="x", token_budget=1000, num_frames=[1, 9], size=[64, 48])
    return LoaderConfig(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(resize="corp"), ["corp", "did you mean", "crop"]),
        (dict(size=[64]), ["[64]", "width, height"]),
        (dict(num_frames=[]), ["num_frames", "at least one"]),
        (dict(num_frames=[9, 9]), ["[9, 9]", "once"]),
        (dict(fps=0.0), ["fps is 0.0", "positive"]),
        (dict(token_budget=0), ["token_budget is 0", "at least 1"]),
        (dict(pool_size=0), ["pool_size is 0", "at least 1"]),
        (dict(cache_bytes=-1), ["cache_bytes is -1"]),
        (dict(seed=2**63), ["seed is 9223372036854775808", "2^63-1"]),
    ],
)
def test_impossible_values_are_refused(changes: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        config(**changes)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("changes", "compression", "words"),
    [
        (dict(num_frames=[8]), Compression(), ["num_frames 8", "5 and 9"]),
        (dict(num_frames=[1]), Compression(patch=(2, 2, 2)), ["1 latent frames", "patch 2"]),
        (dict(size=[64, 40]), Compression(), ["64x40", "multiple of 16"]),
        (dict(token_budget=35), Compression(), ["36 tokens", "budget 35", "raise"]),
    ],
)
def test_lengths_and_sizes_that_give_no_tokens_are_refused(
    changes: dict, compression: Compression, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        config(**changes).check(compression)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_age_bound_below_the_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_age is 7, must be at least pool_size"):
        config(pool_size=8, max_age=7).pool(100.0)


def test_pool_holds_four_packs_where_samples_are_short() -> None:
    assert config().pool(mean_tokens=1000.0) == (128, 256)
    assert config().pool(mean_tokens=4.0) == (1000, 2000)


def test_tokens() -> None:
    # 17 frames: 1 + 16/4 = 5 latent frames; 64x48: 8x6 latents, 4x3 patches of 2x2.
    assert Compression().grid(17, 64, 48) == (5, 3, 4)
    assert Compression().tokens(17, 64, 48) == 60


@pytest.mark.parametrize(
    "clip", [(640, 360), (360, 640), (1920, 800), (100, 100), (3000, 40), (641, 359)]
)
def test_area_keeps_aspect_and_pixels(clip: tuple[int, int]) -> None:
    width, height = target_size("area", [256, 256], Compression(), clip[0], clip[1])
    assert width % 16 == height % 16 == 0
    wanted = math.sqrt(256 * 256 * clip[0] / clip[1]), math.sqrt(256 * 256 * clip[1] / clip[0])
    for got, want in zip((width, height), wanted, strict=True):
        assert abs(got - want) <= 8 or got == 16
