"""Every second and clip has one fate: the sums, what breaks them, and whole runs over fades and
stitched shots; damaged footage is in `test_real_footage`. No network, no GPU.
"""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from curation.accounting import Fate, account
from curation.config import CurateConfig, RefilterConfig, ShotsConfig
from curation.decisions import BlurConfig, MotionConfig
from curation.refilter import refilter
from curation.results import Collected
from curation.run import curate
from curation.tables import ClipRow
from tests.curation import footage
from tests.curation.shots.compose import FPS, cross_fade, fade_in, fade_out, scene

_CLIP = ClipRow(
    clip_id="a",
    video_id="v",
    source="v.mp4",
    start_us=0,
    end_us=1_000_001,
    kept=True,
    reject_reason=None,
    failed_reason=None,
    width=16,
    height=16,
    fps=25.0,
    num_frames=25,
    caption=None,
    caption_source=None,
    scores={},
    crop=None,
    thumbnail=None,
    bucket=None,
    analysis_hash="",
    transcode_hash=None,
)
_DARK = dataclasses.replace(_CLIP, clip_id="b", kept=False, reject_reason="dark")
_BROKEN = dataclasses.replace(
    _CLIP, clip_id="c", kept=False, reject_reason="failed: error", failed_reason="error"
)
_LOST = Fate(kind="failed", reason="damaged", duration_us=7)
_CLIPS = [_CLIP, _DARK, _BROKEN]


def test_the_sums_are_exact() -> None:
    found = account(3_000_010, 3, _CLIPS, [_LOST])
    assert found["seconds_in"] == 3.00001
    assert found["seconds_kept"] == 1.000001
    assert found["seconds_rejected"] == {"dark": 1.000001}
    assert found["seconds_failed"] == {"damaged": 7e-6, "error": 1.000001}
    assert (found["clips_in"], found["clips_kept"]) == (3, 1)
    assert (found["clips_rejected"], found["clips_failed"]) == ({"dark": 1}, {"error": 1})


@pytest.mark.parametrize("wrong", [(3_000_011, 3), (3_000_009, 3), (3_000_010, 4), (3_000_010, 2)])
def test_a_microsecond_or_a_clip_too_many_or_too_few_is_a_defect(wrong: tuple[int, int]) -> None:
    with pytest.raises(AssertionError, match="accounted for"):
        account(*wrong, _CLIPS, [_LOST])


def test_the_sums_are_checked_in_optimised_python_too() -> None:
    code = "from curation.accounting import account\naccount(1, 0, [], [])"
    done = subprocess.run(
        [sys.executable, "-O", "-c", code],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "accounted for 0 of 1 microseconds" in done.stderr


def check_sums(summary: dict[str, Any], output: Path) -> None:
    """The identity again, from the tables and the summary apart."""
    kinds = ("rejected", "failed")
    seconds = summary["seconds_kept"] + sum(sum(summary[f"seconds_{k}"].values()) for k in kinds)
    clips = summary["clips_kept"] + sum(sum(summary[f"clips_{k}"].values()) for k in kinds)
    videos = pq.read_table(output / "videos.parquet")
    assert seconds == pytest.approx(summary["seconds_in"], abs=1e-6)
    assert sum(videos["duration_s"].to_pylist()) == pytest.approx(summary["seconds_in"], abs=1e-6)
    assert clips == summary["clips_in"] == sum(videos["num_clips"].to_pylist())
    rows = pq.read_table(output / "clips.parquet")
    assert len(rows) == clips
    assert sum(rows["kept"].to_pylist()) == summary["clips_kept"]


def _config(folder: Path, **changes: Any) -> CurateConfig:
    return CurateConfig(
        input=str(folder / "in"), output=str(folder / "out"), blur=BlurConfig(min=None), **changes
    )


def _write(folder: Path, frames: np.ndarray) -> None:
    shown = np.clip(frames, 0, 255).astype(np.uint8)
    footage.write(folder / "in" / "a.mp4", shown, fps=FPS)


def test_transitions_are_rejected_seconds(tmp_path: Path) -> None:
    fades = [cross_fade(scene(1, 60), scene(2, 60), 20), fade_in(fade_out(scene(4, 90), 15), 15)]
    _write(tmp_path, np.concatenate(fades))
    result = curate(_config(tmp_path))
    check_sums(result.summary, tmp_path / "out")
    assert result.summary["seconds_rejected"]["transition"] > 0.6
    # Another decision counts the same footage.
    again = refilter(RefilterConfig(folder=str(tmp_path / "out"), motion=MotionConfig(min=50.0)))
    check_sums(again.summary, tmp_path / "out")
    assert again.summary["seconds_in"] == result.summary["seconds_in"]
    assert again.summary["seconds_rejected"]["transition"] > 0.6


def test_stitched_clips_count_once(tmp_path: Path) -> None:
    frames = np.concatenate([scene(1, 60), scene(4, 60)])
    frames[30:33] = 0.1 * frames[30:33] + 0.9 * 255
    num_clips = {}
    for limit in (0.0, 0.6):
        folder = tmp_path / str(limit)
        _write(folder, frames)
        shots = ShotsConfig(detector="content", min_shot_s=0.0, stitch=limit)
        result = curate(_config(folder, shots=shots))
        check_sums(result.summary, folder / "out")
        assert result.summary["seconds_in"] == 4.8
        num_clips[limit] = result.summary["clips_in"]
    assert num_clips == {0.0: 4, 0.6: 2}


def test_a_clip_that_gets_lost_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, np.concatenate([scene(1, 30), scene(4, 30)]))
    whole = Collected.decide

    def forgetful(self: Collected, *args: Any) -> None:
        whole(self, *args)
        self._clips.pop(next(iter(self._clips)))

    monkeypatch.setattr(Collected, "decide", forgetful)
    with pytest.raises(AssertionError, match="accounted for 1200000 of 2400000 microseconds"):
        curate(_config(tmp_path))
