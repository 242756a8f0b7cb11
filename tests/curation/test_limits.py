"""Limits of scores: absolute, percentiles, none; what they resolve to and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import ConfigError
from curation.config import CurateConfig
from curation.decide import decide
from curation.decisions import BlurConfig, BrightConfig, DarkConfig, MotionConfig
from curation.limits import percentile_of, resolved
from curation.run import curate
from curation.scores import SCORES, Score
from curation.stages.analyse import ScoredClip
from tests.curation import footage


def clips(**values: list[float]) -> list[ScoredClip]:
    """Clips of two seconds; scores that are not given are not valid."""
    (count,) = {len(column) for column in values.values()}
    return [
        ScoredClip(
            clip_id=f"c{i}",
            start_us=0,
            end_us=2_000_000,
            num_frames=50,
            crop=None,
            scores={
                name: Score(value=values[name][i], valid=True)
                if name in values
                else Score(value=0.0, valid=False)
                for name in SCORES
            },
        )
        for i in range(count)
    ]


def config(**sections: Any) -> CurateConfig:
    return CurateConfig(input="in", output="out", **sections)


def test_what_a_percentile_is() -> None:
    assert percentile_of("p20") == 20.0
    assert percentile_of("p2.5") == 2.5
    assert percentile_of("p100") == 100.0
    for other in ("p101", "p-1", "20", "p", "P20", "p20%", "p1e1", 20.0, None):
        assert percentile_of(other) is None


def test_a_percentile_rejects_its_share_of_the_valid() -> None:
    values = np.random.default_rng(0).lognormal(size=1000).tolist()
    found = clips(motion=values, luma=[100.0] * 1000)
    decision = decide(config(motion=MotionConfig(min="p20", max="p95")), found)
    reasons = [decision.reject_reason(clip) for clip in found]
    assert reasons.count("low_motion") == 200
    assert reasons.count("high_motion") == 50
    # A score that is not valid counts neither for the percentile nor against its clip.
    unknown = clips(luma=[100.0] * 5000)
    assert decide(config(motion=MotionConfig(min="p20", max="p95")), [*found, *unknown]).limits == (
        decision.limits
    )
    assert {decision.reject_reason(clip) for clip in unknown} == {None}


def test_whoever_stands_at_the_limit_stays() -> None:
    values = [1.23456789, 2.0, 3.45678912]
    assert resolved("p0", "min", values) == pytest.approx(1.2345)
    assert resolved("p100", "max", values) == pytest.approx(3.4568)
    assert resolved("p50", "min", values) == 2.0
    assert resolved("p50", "max", [-1.23456789]) == pytest.approx(-1.2345)
    assert resolved("p50", "min", [0.0]) == 0.0
    assert resolved("p50", "min", []) is None
    assert resolved(None, "min", values) is None
    assert resolved(7.0, "max", values) == 7.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlurConfig(min="p200"), r"blur\.min=p200 is impossible: a number, a percentile"),
        (lambda: BlurConfig(max="sharp"), r"blur\.max=sharp is impossible"),
        (lambda: MotionConfig(min="p80", max="p20"), r"motion\.min=p80 .* above motion\.max=p20"),
        (lambda: MotionConfig(min=0.2, max=0.1), r"motion\.min=0\.2 .* above motion\.max=0\.1"),
        (lambda: MotionConfig(min=-1.0), r"motion\.min=-1\.0 is impossible: at least 0"),
        (lambda: DarkConfig(min=256.0), r"dark\.min=256\.0 is impossible: 0 to 255"),
        (
            lambda: config(dark=DarkConfig(min=90.0), bright=BrightConfig(max=80.0)),
            r"dark\.min=90\.0 is impossible: above bright\.max=80\.0",
        ),
    ],
)
def test_impossible_limits_are_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_percentile_above_the_other_limit_is_refused_once_it_is_known() -> None:
    motion = MotionConfig(min="p50", max=0.1)
    with pytest.raises(ConfigError, match=r"motion\.min=p50 \(0\.5 here\) is above motion\.max=0"):
        decide(config(motion=motion), clips(motion=[0.4, 0.5, 0.6]))


def test_the_summary_tells_what_was_typed_and_what_it_was(tmp_path: Path) -> None:
    for seed, step_px in enumerate((0.5, 1.0, 2.0, 4.0)):
        frames = footage.shot(seed, 30, size=(256, 144), step_px=step_px)
        footage.write(tmp_path / "in" / f"{seed}.mp4", frames)
    base = CurateConfig(
        input=str(tmp_path / "in"),
        output=str(tmp_path / "out"),
        blur=BlurConfig(min=None),
        motion=MotionConfig(min="p30"),
    )
    first = curate(base).summary
    assert first["clips_rejected"] == {"low_motion": 1}
    motion = json.loads((tmp_path / "out" / "summary.json").read_text())["thresholds"]["motion"]
    assert motion["typed"] == {"min": "p30", "max": None}
    assert 0 < motion["min"] < 1 and motion["max"] is None
    # More footage does not move the limit that the shards were made by.
    for seed in (11, 12, 13):
        frames = footage.shot(seed, 30, size=(256, 144), step_px=6.0)
        footage.write(tmp_path / "in" / f"{seed}.mp4", frames)
    second = curate(base).summary
    assert second["thresholds"] == first["thresholds"]
    assert second["clips_rejected"] == {"low_motion": 1}
    assert second["clips_kept"] == 6
