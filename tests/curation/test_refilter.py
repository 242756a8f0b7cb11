"""Other decisions over a curated folder, and the shards that follow them.

Footage made here; one process, no network, no GPU.
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from common.errors import ConfigError, DataError
from common.media import VideoReader
from curation.config import CurateConfig, RefilterConfig, ReshardConfig
from curation.decisions import AtMost, BlurConfig, Decisions, JitterConfig, MotionConfig
from curation.folder import settings_of
from curation.ledger import Ledger
from curation.refilter import preview, refilter, reshard, shard_plan
from curation.run import curate
from dataloading.schema import read_index, read_manifest
from tests.curation import footage

SPEEDS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0)


def _config(root: Path, output: str = "out", **changes: Any) -> CurateConfig:
    base: dict[str, Any] = {"blur": BlurConfig(min=None)} | changes
    return CurateConfig(input=str(root / "in"), output=str(root / output), **base)


def _curated(root: Path, **changes: Any) -> Path:
    for seed, step_px in enumerate(SPEEDS):
        frames = footage.shot(seed, 30, size=(256, 144), step_px=step_px)
        footage.write(root / "in" / f"{seed}.mp4", frames)
    (root / "in" / "empty.mp4").write_bytes(b"")
    curate(_config(root, **changes))
    return root / "out"


def _refilter(folder: Path, **changes: Any) -> RefilterConfig:
    settings = settings_of(str(folder))
    names = [field.name for field in dataclasses.fields(Decisions)]
    return RefilterConfig(
        folder=str(folder), **({name: getattr(settings, name) for name in names} | changes)
    )


def _tars(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted((folder / "shards").rglob("*"))
        if p.is_file()
    }


def _kept(folder: Path) -> set[str]:
    rows = pq.read_table(folder / "clips.parquet").to_pylist()
    return {row["clip_id"] for row in rows if row["kept"]}


def _sharded(folder: Path) -> set[str]:
    shards = folder / "shards"
    indexes = [read_index(shards / s.index_path) for s in read_manifest(shards).shards]
    return {clip_id for index in indexes for clip_id in index["clip_id"].to_pylist()}


def test_a_decision_needs_no_decode_and_touches_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _curated(tmp_path)
    tars, videos = _tars(folder), (folder / "videos.parquet").read_bytes()
    before = pq.read_table(folder / "clips.parquet").to_pylist()
    first = json.loads((folder / "summary.json").read_text())
    with monkeypatch.context() as patch:
        patch.setattr(VideoReader, "__init__", None)  # whoever opens a video fails
        result = refilter(_refilter(folder, motion=MotionConfig(min="p50")))
    assert result.exit_code == 0
    assert _tars(folder) == tars
    assert (folder / "videos.parquet").read_bytes() == videos
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == result.summary
    assert (summary["clips_kept"], summary["clips_rejected"]) == (3, {"low_motion": 3})
    assert summary["shards"] == {"clips": 6, "to_add": 0, "to_leave_out": 3}
    assert summary["thresholds"]["motion"]["typed"] == {"min": "p50", "max": None}
    assert summary["seconds_in"] == first["seconds_in"]
    assert summary["seconds_failed"] == first["seconds_failed"] == {"empty": 0.0}
    after = pq.read_table(folder / "clips.parquet").to_pylist()
    changes = {"kept", "reject_reason", "bucket"}
    for old, new in zip(before, after, strict=True):
        assert {k: v for k, v in new.items() if k not in changes} == {
            k: v for k, v in old.items() if k not in changes
        }
        assert new["kept"] == (new["reject_reason"] is None) == (new["bucket"] is not None)
    page = (folder / "report" / "index.html").read_text()
    assert "3 of 6 clips kept" in page
    assert "0 clips to add, 3 to leave out" in page
    # And back again, to the very bytes.
    refilter(_refilter(folder, motion=MotionConfig()))
    assert pq.read_table(folder / "clips.parquet").to_pylist() == before
    assert json.loads((folder / "summary.json").read_text()) == first
    assert "to leave out" not in (folder / "report" / "index.html").read_text()


def _forget(folder: Path, *names: str) -> None:
    """As if the folder were of a version without these limits."""
    ledger = Ledger(folder / "ledger")
    stored: dict[str, Any] = {key: ledger.meta(key) for key in ("config", "limits", "parameters")}
    for name in names:
        del stored["config"][name], stored["limits"][f"{name}.max"]
        del stored["parameters"]["decide"][f"{name}.max"]
    for key, value in stored.items():
        ledger.set_meta(key, value)
    ledger.close()


def test_limits_that_came_after_a_folder_limit_nothing_in_it(tmp_path: Path) -> None:
    """Neither `curate`, `refilter` nor `shard` refuses it or takes a default of today."""
    off: dict[str, Any] = {"jitter": JitterConfig(max=None), "logo": AtMost()}
    folder = _curated(tmp_path, **off)
    kept = _kept(folder)
    _forget(folder, *off)
    curate(_config(tmp_path, **off))
    assert _kept(folder) == kept
    _forget(folder, *off)
    table = pq.read_table(folder / "clips.parquet")
    pq.write_table(table.drop_columns(["score_logo", "valid_logo"]), folder / "clips.parquet")
    reshard(ReshardConfig(folder=str(folder)))
    assert settings_of(str(folder)).jitter.max is None
    refilter(_refilter(folder, jitter=JitterConfig(max=None), logo=AtMost(max=0.0)))
    assert _kept(folder) == kept


def test_shards_are_added_to_and_rewritten_only_when_asked(tmp_path: Path) -> None:
    folder = _curated(tmp_path, motion=MotionConfig(min="p50"))
    first = _tars(folder)
    config = _refilter(folder, motion=MotionConfig(min=0.0005))
    assert preview(config)["shards"] == {"clips": 3, "to_add": 3, "to_leave_out": 0}
    assert _tars(folder) == first
    refilter(config)
    assert shard_plan(ReshardConfig(folder=str(folder))) == {
        "clips": 3,
        "to_add": 3,
        "to_leave_out": 0,
    }
    added = reshard(ReshardConfig(folder=str(folder)))
    assert added.summary["shards"] == {"clips": 6, "to_add": 0, "to_leave_out": 0}
    assert _sharded(folder) == _kept(folder)
    after = _tars(folder)
    tars = [name for name in first if name.endswith((".tar", ".arrow"))]
    assert {name: after[name] for name in tars} == {name: first[name] for name in tars}
    assert not list((folder / "ledger" / "spool").glob("*"))

    # Fewer clips: nothing happens unasked.
    refilter(_refilter(folder, motion=MotionConfig(min="p50")))
    before = _tars(folder)
    with pytest.raises(ConfigError, match=r"no longer kept \(3\).* `vfm shard .* rewrite=true`"):
        reshard(ReshardConfig(folder=str(folder)))
    with pytest.raises(ConfigError, match=r"no longer kept \(3\)"):
        curate(_config(tmp_path, motion=MotionConfig(min="p50")))
    assert _tars(folder) == before
    done = reshard(ReshardConfig(folder=str(folder), rewrite=True))
    assert done.summary["shards"] == {"clips": 3, "to_add": 0, "to_leave_out": 0}
    assert _sharded(folder) == _kept(folder)
    assert _tars(folder) == first, "as they were made at first"
    assert not list(folder.glob(".tmp-*"))


def test_rewritten_shards_are_those_of_a_fresh_curation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _curated(tmp_path, motion=MotionConfig(min="p60"))
    other = MotionConfig(max="p60")
    curate(_config(tmp_path, "fresh", motion=other))
    refilter(_refilter(folder, motion=other))
    opened = []
    whole = VideoReader.__init__

    def noted(self: VideoReader, source: Any, **more: Any) -> None:
        opened.append(Path(source).name)
        whole(self, source, **more)

    monkeypatch.setattr(VideoReader, "__init__", noted)
    result = reshard(ReshardConfig(folder=str(folder), rewrite=True))
    assert result.exit_code == 0
    assert _tars(folder) == _tars(tmp_path / "fresh")
    # The fourth clip in order of speed was in the shards already: copied, not encoded.
    assert len(opened) == len(set(opened)) == 3
    fresh = pq.read_table(tmp_path / "fresh" / "clips.parquet")
    assert pq.read_table(folder / "clips.parquet").equals(fresh)


def test_a_decision_is_what_the_next_curation_must_share(tmp_path: Path) -> None:
    folder = _curated(tmp_path)
    refilter(_refilter(folder, motion=MotionConfig(min=1e-9)))
    with pytest.raises(ConfigError, match=r"other limits .* `vfm refilter .* motion\.min=0\.0005`"):
        curate(_config(tmp_path))
    again = curate(_config(tmp_path, motion=MotionConfig(min=1e-9)))
    assert again.summary["clips_kept"] == 6
    assert "analyse" not in again.summary["stages"]


def test_a_clip_whose_source_is_gone_fails_and_comes_back_with_it(tmp_path: Path) -> None:
    folder = _curated(tmp_path, motion=MotionConfig(min="p20"))
    lost, kept_elsewhere = tmp_path / "in" / "0.mp4", tmp_path / "0.mp4"
    lost.rename(kept_elsewhere)
    refilter(_refilter(folder, motion=MotionConfig(min=None)))
    result = reshard(ReshardConfig(folder=str(folder)))
    assert result.exit_code == 1
    assert result.summary["clips_failed"] == {"missing": 1}
    entries = [json.loads(line) for line in (folder / "failed.jsonl").read_text().splitlines()]
    assert [entry["reason"] for entry in entries] == ["missing", "empty"]
    assert all(entry["command"].startswith("vfm curate input=") for entry in entries)
    # Decided against, it is rejected and no failure any more; decided for, it waits for its source.
    assert refilter(_refilter(folder, motion=MotionConfig(min="p20"))).summary["clips_failed"] == {}
    refilter(_refilter(folder, motion=MotionConfig(min=None)))
    kept_elsewhere.rename(lost)
    assert reshard(ReshardConfig(folder=str(folder))).summary["clips_kept"] == 6
    assert len((folder / "failed.jsonl").read_text().splitlines()) == 1


def test_a_killed_rewrite_leaves_the_old_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import curation.sharding

    folder = _curated(tmp_path)
    refilter(_refilter(folder, motion=MotionConfig(min="p50")))
    before = _tars(folder)
    ask = ReshardConfig(folder=str(folder), rewrite=True)
    with monkeypatch.context() as patch:

        def killed(*args: Any) -> None:
            (folder / ".tmp-left").mkdir()
            (folder / ".tmp-left" / "half.tar").write_bytes(b"x")
            raise KeyboardInterrupt

        patch.setattr(curation.sharding, "write_energon", killed)
        with pytest.raises(KeyboardInterrupt):
            reshard(ask)
    assert _tars(folder) == before
    reshard(ask)
    assert _sharded(folder) == _kept(folder)
    assert not list(folder.glob(".tmp-*"))


def test_what_cannot_be_decided_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        refilter(RefilterConfig(folder=str(tmp_path / "nowhere")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="not the output of a finished `vfm curate`"):
        reshard(ReshardConfig(folder=str(tmp_path / "empty")))
    folder = _curated(tmp_path)
    with pytest.raises(ConfigError, match=r"motion\.min=p50 .* is above motion\.max=0\.001"):
        refilter(_refilter(folder, motion=MotionConfig(min="p50", max=0.001)))
    refilter(_refilter(folder, motion=MotionConfig(min=100.0)))
    with pytest.raises(ConfigError, match="keeps no clip"):
        reshard(ReshardConfig(folder=str(folder)))
    (folder / "summary.json").write_text("{")
    with pytest.raises(DataError, match="are damaged or of another version"):
        refilter(_refilter(folder))
    ledger = Ledger(folder / "ledger")
    ledger.set_meta("config", {"blur": 3})
    ledger.close()
    with pytest.raises(DataError, match="another version of vfm"):
        settings_of(str(folder))
