"""The default detector on made shots: cuts, fades, and what is easily taken for them. No video."""

from collections.abc import Callable

import numpy as np
import pytest

from common.tape import Spill
from curation.config import ShotsConfig
from curation.shots import blend, shot_finder
from tests.curation.shots.compose import (
    STEP_US,
    boundaries,
    cross_fade,
    fade_in,
    fade_out,
    scene,
)


def _found(
    frames: np.ndarray, times_us: np.ndarray | None = None, *, gradual: bool = True
) -> list[tuple[int, int]]:
    return boundaries(
        shot_finder(ShotsConfig(gradual=gradual), fps=25, spill=Spill()), frames, times_us
    )


def _at(*numbers: int) -> list[tuple[int, int]]:
    return [(number * STEP_US, number * STEP_US) for number in numbers]


def test_cuts_are_found_at_their_timestamps() -> None:
    frames = np.concatenate([scene(seed, 20) for seed in (11, 12, 13)])
    assert _found(frames) == _at(20, 40)
    # Uneven distances: every third frame stays twice as long.
    times = np.cumsum([0, *([50_000, 50_000, 100_000] * 20)[: len(frames) - 1]])
    expected = [(int(times[n]), int(times[n])) for n in (20, 40)]
    assert _found(frames, times) == expected


def test_pictures_that_are_shown_twice_are_no_cuts() -> None:
    frames = np.concatenate([scene(seed, 20) for seed in (11, 12)])
    jerky = frames[::4].repeat(4, axis=0)
    assert _found(jerky) == _at(20)


@pytest.mark.parametrize("overlap", [8, 20, 45])
def test_a_cross_fade_is_cut_out(overlap: int) -> None:
    frames = cross_fade(scene(1, 40 + overlap), scene(2, 40 + overlap), overlap)
    ((start, end),) = _found(frames)
    # Lengths are tried in steps of a quarter.
    assert abs(start / STEP_US - 40) <= max(3, overlap / 8)
    assert abs(end / STEP_US - (40 + overlap)) <= max(3, overlap / 8)
    assert _found(frames, gradual=False) == []


@pytest.mark.parametrize("num_black", [0, 5])
def test_a_fade_through_black_is_one_transition(num_black: int) -> None:
    black = np.zeros_like(scene(1, 1)).repeat(num_black, axis=0)
    frames = np.concatenate([fade_out(scene(1, 60), 15), black, fade_in(scene(2, 60), 15)])
    ((start, end),) = _found(frames)
    assert abs(start / STEP_US - 45) <= 3
    assert abs(end / STEP_US - (75 + num_black)) <= 3


def _flash(frames: np.ndarray) -> np.ndarray:
    frames[30:32] = 0.2 * frames[30:32] + 0.8 * 255
    return frames


def _drift(frames: np.ndarray) -> np.ndarray:
    gain = 0.5 + 1 / (1 + np.exp(-(np.arange(len(frames)) - 30) / 4))
    return frames * gain[:, None, None, None].astype(np.float32)


def _shake(frames: np.ndarray) -> np.ndarray:
    random = np.random.default_rng(0)
    return np.stack([np.roll(f, random.integers(-9, 10, 2), axis=(0, 1)) for f in frames])


def _pan(frames: np.ndarray) -> np.ndarray:
    at = np.cumsum(np.exp(-(((np.arange(len(frames)) - 30) / 4) ** 2)) * 6).astype(int)
    return np.stack([np.roll(f, shift, axis=1) for f, shift in zip(frames, at, strict=True)])


@pytest.mark.parametrize("trouble", [_flash, _drift, _shake, _pan])
def test_what_stays_in_a_scene_is_no_boundary(
    trouble: Callable[[np.ndarray], np.ndarray],
) -> None:
    assert _found(trouble(scene(5, 60))) == []


def test_nothing_is_compared_across_a_hole() -> None:
    finder = shot_finder(ShotsConfig(), fps=25, spill=Spill())
    boundaries(finder, scene(14, 20))
    finder.interrupt()
    assert boundaries(finder, scene(15, 20), 2_000_000 + np.arange(20) * STEP_US) == []


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long video is settled piece by piece; where the pieces end must not show."""
    frames = scene(0, 50)
    for number, seed in enumerate((1, 4, 5, 8, 9, 6)):
        then = scene(seed, 70)
        frames = np.concatenate([frames, then]) if number % 2 else cross_fade(frames, then, 20)
    whole = _found(frames)
    assert len(whole) == 6
    monkeypatch.setattr(blend, "_BLOCK_S", 6.0)
    assert _found(frames) == whole
