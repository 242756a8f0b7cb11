"""Shots to clips by numbers alone: bounds that hold for any timestamps. No video."""

from itertools import pairwise

import numpy as np
import pytest

from common.tape import Spill
from curation.shots import FrameTimes, longest_held_us, split_spans

MAX_US = 2_000_000


def _times(starts_us: np.ndarray, max_clip_us: int = MAX_US) -> FrameTimes:
    times = FrameTimes(Spill(), max_clip_us)
    for start_us in starts_us.tolist():
        times.append(start_us)
    return times


def _clips(steps_us: list[int], cuts: list[int] | None = None) -> list[tuple[int, int]]:
    stamps = np.cumsum([0, *steps_us])
    cuts_us = [(int(stamps[n]), int(stamps[n])) for n in cuts or []]
    clips, transitions = split_spans((0, int(stamps[-1])), cuts_us, _times(stamps[:-1]))
    assert not transitions
    return clips


def test_long_shots_are_split_evenly_at_frames() -> None:
    assert _clips([40_000] * 75) == [(0, 1_520_000), (1_520_000, 3_000_000)]
    assert _clips([40_000] * 50) == [(0, 2_000_000)]
    # Halves that begin at frames would be over the limit by a frame.
    assert len(_clips([33_367] * 119)) == 3


def test_a_held_picture_is_a_clip_of_its_own() -> None:
    steps = [40_000] * 20 + [5_000_000] + [40_000] * 20
    assert _clips(steps) == [(0, 800_000), (800_000, 5_800_000), (5_800_000, 6_600_000)]
    assert _clips([1_000_000, 1_000_000]) == [(0, 2_000_000)]


@pytest.mark.parametrize("seed", range(20))
def test_clips_tile_the_stretch_and_keep_to_the_longest_length(seed: int) -> None:
    random = np.random.default_rng(seed)
    steps = random.choice([1_000, 40_000, 300_000, 999_000, 1_500_000, 60_000_000], 200)
    cuts = sorted(random.choice(np.arange(1, 200), 10, replace=False).tolist())
    stamps = np.cumsum([0, *steps.tolist()])
    boundaries = [(int(stamps[n]), int(stamps[n])) for n in cuts]
    clips, _ = split_spans((0, int(stamps[-1])), boundaries, _times(stamps[:-1]))
    assert [start for start, _ in clips[1:]] == [end for _, end in clips[:-1]]
    assert (clips[0][0], clips[-1][1]) == (0, int(stamps[-1]))
    starts = set(stamps.tolist())
    assert {start for start, _ in clips} <= starts
    assert {int(stamps[n]) for n in cuts} <= {start for start, _ in clips}
    for start, end in clips:
        inside = [at for at in stamps if start <= at <= end]
        held = max(b - a for a, b in pairwise(inside))
        if held > longest_held_us(MAX_US):
            assert len(inside) == 2
        else:
            assert end - start <= MAX_US


def test_a_transition_belongs_to_neither_clip() -> None:
    starts = _times(np.arange(0, 6_000_000, 40_000), 10_000_000)
    boundaries = [(1_000_000, 1_400_000), (3_000_000, 3_000_000)]
    clips, transitions = split_spans((0, 6_000_000), boundaries, starts)
    assert clips == [(0, 1_000_000), (1_400_000, 3_000_000), (3_000_000, 6_000_000)]
    assert transitions == [(1_000_000, 1_400_000)]


def test_crumbs_of_shots_are_part_of_the_transition() -> None:
    starts = _times(np.arange(0, 6_000_000, 40_000), 10_000_000)
    boundaries = [(at, at) for at in (80_000, 2_000_000, 2_040_000, 4_000_000, 5_920_000)]
    clips, transitions = split_spans((0, 6_000_000), boundaries, starts, min_shot_us=200_000)
    assert clips == [(80_000, 2_000_000), (2_040_000, 4_000_000), (4_000_000, 5_920_000)]
    assert transitions == [(0, 80_000), (2_000_000, 2_040_000), (5_920_000, 6_000_000)]
    whole, none = split_spans((0, 120_000), [], starts, min_shot_us=200_000)
    assert (whole, none) == ([(0, 120_000)], [])


def test_boundaries_elsewhere_do_not_touch_a_stretch() -> None:
    starts = _times(np.arange(0, 6_000_000, 40_000), 10_000_000)
    boundaries = [(1_000_000, 1_000_000), (2_800_000, 3_200_000), (5_000_000, 5_000_000)]
    clips, transitions = split_spans((3_000_000, 5_000_000), boundaries, starts)
    assert clips == [(3_200_000, 5_000_000)]
    assert transitions == [(3_000_000, 3_200_000)]
