"""Timestamps to frames and holes, on pictures that are numbers only. No file, no decoder."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest

from common.timeline import Clock, Health, Timeline


@dataclass
class Picture:
    """Timestamps count tenths of a second."""

    pts: int | None
    key_frame: bool = False
    duration: int = 1
    time_base: Fraction = Fraction(1, 10)


ERROR = "error"


def _read(
    *stream: Picture | str, declared_s: float = 0.0, joins: bool = False
) -> tuple[list[tuple[float, float]], Health]:
    """(time, duration) of the frames, and the health."""

    def pictures() -> Iterator[tuple[Any, bool]]:
        for entry in stream:
            yield (None, True) if isinstance(entry, str) else (entry, False)

    clock = Clock(
        stamp=lambda picture: picture.pts,
        origin=0,
        frame_s=0.1,
        declared_s=declared_s,
        of_pictures=declared_s > 0,
        joins=joins,
    )
    health = Health()
    frames = list(Timeline(clock, health).frames(pictures()))
    return [(round(f.pts_s, 6), round(f.duration_s, 6)) for f in frames], health


def _run(start: int, end: int) -> list[Picture]:
    return [Picture(at, key_frame=at % 10 == 0) for at in range(start, end)]


def _even(count: int) -> list[tuple[float, float]]:
    return [(round(n / 10, 6), 0.1) for n in range(count)]


def test_a_second_picture_of_an_instant_goes_alone() -> None:
    frames, health = _read(*_run(0, 5), Picture(4), Picture(4), *_run(5, 9))
    assert frames == _even(9)
    assert (health.num_errors, health.lost_s) == (0, [])


def test_pictures_without_a_time_follow_the_one_before() -> None:
    frames, _ = _read(*_run(0, 5), Picture(None), Picture(None))
    assert frames == _even(7)


@pytest.mark.parametrize("start", [0, 3, -20])
def test_a_jump_back_continues_the_time(start: int) -> None:
    second = [Picture(at, key_frame=at == start) for at in range(start, start + 15)]
    frames, health = _read(*_run(0, 15), *second, declared_s=1.5)
    assert frames == _even(30)
    assert (health.num_errors, health.lost_s) == (0, [])


def test_a_stray_timestamp_is_no_joint() -> None:
    frames, health = _read(*_run(0, 50), Picture(20), *_run(50, 60))
    assert frames == _even(60)
    assert (health.num_errors, health.lost_s) == (0, [])


def test_a_jump_ahead_is_a_joint_where_containers_are_joined() -> None:
    stream = [*_run(0, 5), *_run(500, 505)]
    frames, _ = _read(*stream, joins=True)
    assert frames == _even(10)
    frames, _ = _read(*stream)
    assert frames[4:6] == [(0.4, 49.6), (50.0, 0.1)]


def test_a_step_back_is_damage_up_to_the_next_key_frame() -> None:
    frames, health = _read(*_run(0, 5), Picture(2), *_run(5, 12))
    assert [at for at, _ in frames] == [0, 0.1, 0.2, 0.3, 0.4, 1.0, 1.1]
    assert health.num_errors == 1
    assert health.lost_s == [(pytest.approx(0.5), pytest.approx(1.0))]


def test_pictures_left_out_at_the_end_are_lost_without_a_header_that_says_so() -> None:
    frames, health = _read(*_run(0, 5), ERROR, *_run(5, 9))
    assert frames == _even(5)
    assert health.lost_s == [(pytest.approx(0.5), pytest.approx(0.9))]


def test_a_wild_timestamp_of_a_picture_left_out_says_nothing_of_the_end() -> None:
    _, health = _read(ERROR, Picture(88_000), *_run(10, 15), ERROR, Picture(19), *_run(20, 25))
    assert health.lost_s == [
        (0.0, pytest.approx(1.0)),
        (pytest.approx(1.5), pytest.approx(2.0)),
    ]


def test_pictures_left_out_before_a_joint_are_lost_too() -> None:
    frames, health = _read(*_run(0, 25), ERROR, *_run(25, 29), *_run(0, 5))
    assert frames == [*_even(25), *((round(2.9 + n / 10, 6), 0.1) for n in range(5))]
    assert health.lost_s == [(pytest.approx(2.5), pytest.approx(2.9))]
