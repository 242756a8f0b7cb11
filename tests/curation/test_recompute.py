"""A changed setting of one score: that score is measured again, all stale ones in one decode.

One process, no network, no GPU.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from common.errors import ConfigError
from common.video_reader import VideoReader
from curation.config import AnalysisConfig, CurateConfig, RefilterConfig
from curation.decisions import Decisions, MotionConfig
from curation.folder import settings_of
from curation.refilter import refilter
from curation.run import curate
from curation.scores import MEASURES
from curation.stages import analyse
from tests.curation import footage


class _Watch:
    """Which measures each decode served."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.measured: list[list[str]] = []
        self.decodes = 0
        real, frames = analyse.FrameScorer, VideoReader.frames

        def scorer(config: AnalysisConfig, spill: Any, only: Any) -> Any:
            self.measured.append(list(only))
            return real(config, spill, only)

        def counted(reader: VideoReader, **span: Any) -> Any:
            self.decodes += 1
            return frames(reader, **span)

        monkeypatch.setattr(analyse, "FrameScorer", scorer)
        monkeypatch.setattr(VideoReader, "frames", counted)


def _folder(tmp_path: Path) -> Path:
    frames = np.concatenate([footage.shot(s, 30, size=(256, 144), step_px=3) for s in (1, 2)])
    footage.write(tmp_path / "in" / "a.mp4", frames)
    return tmp_path / "in"


def _curate(folder: Path, output: Path, **analysis: Any) -> list[dict[str, Any]]:
    # Nothing is kept: shards would hold the folder to its settings.
    config = CurateConfig(
        input=str(folder),
        output=str(output),
        motion=MotionConfig(min=1e6),
        analysis=AnalysisConfig(**analysis),
    )
    curate(config)
    return pq.read_table(output / "clips.parquet").to_pylist()


def test_only_what_is_stale_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, output = _folder(tmp_path), tmp_path / "out"
    watch = _Watch(monkeypatch)
    first = _curate(folder, output)
    assert watch.measured == [list(MEASURES)]
    changed = {"still_s": 0.05, "bar_level": 100, "jitter_window_s": 0.5}
    again = _curate(folder, output, **changed)
    assert watch.measured[1:] == [["light", "stillness", "jitter"]]
    assert watch.decodes == 2, "one decode each, nothing was encoded"
    fresh = _curate(folder, tmp_path / "fresh", **changed)
    assert again == fresh
    assert again != first
    assert [row["clip_id"] for row in again] == [row["clip_id"] for row in first]
    # Back to what was, and a mere number of threads: nothing is decoded.
    assert _curate(folder, output) == first
    _curate(folder, output, threads=1)
    assert watch.decodes == 3


def test_other_shots_are_other_clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, output = _folder(tmp_path), tmp_path / "out"
    watch = _Watch(monkeypatch)
    _curate(folder, output)
    _curate(folder, output, width_px=160)
    assert watch.measured == [list(MEASURES)] * 2


def test_damage_is_decoded_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, output = _folder(tmp_path), tmp_path / "out"
    path = folder / "a.mp4"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    path.write_bytes(data)
    _curate(folder, output)
    again = _curate(folder, output, still_s=0.05)
    assert again == _curate(folder, tmp_path / "fresh", still_s=0.05)


def test_what_fails_after_the_header_costs_its_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("a scorer that fails")

    monkeypatch.setattr(analyse, "FrameScorer", broken)
    config = CurateConfig(input=str(_folder(tmp_path)), output=str(tmp_path / "out"), retries=0)
    summary = curate(config).summary
    assert summary["seconds_failed"] == {"error": pytest.approx(3.0, abs=0.1)}
    assert summary["seconds_in"] == pytest.approx(3.0, abs=0.1)


def test_refilter_measures_what_is_stale_and_keeps_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the folder's own settings, which are not today's defaults."""
    watch = _Watch(monkeypatch)
    config = CurateConfig(
        input=str(_folder(tmp_path)),
        output=str(tmp_path / "out"),
        motion=MotionConfig(min=None),
        analysis=AnalysisConfig(samples_per_s=5.0, still_s=0.7),
    )
    assert curate(config).summary["clips_kept"] == 2
    shards = {p: p.read_bytes() for p in (tmp_path / "out" / "shards").rglob("*") if p.is_file()}
    limits = {f.name: getattr(config, f.name) for f in dataclasses.fields(Decisions)}
    changed = dataclasses.replace(config.analysis, jitter_window_s=0.5)
    decodes = watch.decodes
    result = refilter(RefilterConfig(folder=str(tmp_path / "out"), **limits, analysis=changed))
    assert watch.measured[1:] == [["jitter"]]
    assert watch.decodes == decodes + 1
    assert result.summary["decodes"]["analysis"] == 2
    assert {p: p.read_bytes() for p in shards} == shards
    fresh = dataclasses.replace(config, output=str(tmp_path / "fresh"), analysis=changed)
    curate(fresh)
    for table in ("clips", "videos"):
        here, there = (
            pq.read_table(tmp_path / name / f"{table}.parquet").to_pylist()
            for name in ("out", "fresh")
        )
        assert here == there
    assert settings_of(str(tmp_path / "out")).analysis == changed
    # Without a word about it everything stays, and the same folder goes on under its new settings.
    assert refilter(RefilterConfig(folder=str(tmp_path / "out"), **limits)).exit_code == 0
    assert settings_of(str(tmp_path / "out")).analysis == changed
    assert curate(dataclasses.replace(fresh, output=config.output)).exit_code == 0
    with pytest.raises(ConfigError, match=r"analysis\.width_px=160 makes other pictures"):
        refilter(
            RefilterConfig(
                folder=str(tmp_path / "out"),
                **limits,
                analysis=dataclasses.replace(changed, width_px=160),
            )
        )
    (tmp_path / "in" / "a.mp4").unlink()
    with pytest.raises(ConfigError, match="1 of 1 sources cannot be measured again, a.mp4"):
        refilter(
            RefilterConfig(
                folder=str(tmp_path / "out"),
                **limits,
                analysis=dataclasses.replace(changed, jitter_window_s=0.7),
            )
        )
