"""The whole curation on footage made here: outputs, accounting, failures, more input.

One process, no network, no GPU.
"""

import hashlib
import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from common.errors import ConfigError, VfmError
from common.media import probe, read_frames
from curation.config import CurateConfig, ShardConfig, TranscodeConfig
from curation.decisions import BlurConfig, MotionConfig
from curation.ledger import only_driver
from curation.run import CurateResult, curate
from curation.summary import printable
from dataloading.schema import read_index, read_manifest
from tests.curation import footage

SIZE = (256, 144)


def _shots(*seeds: int, num_frames: int = 30) -> np.ndarray:
    return np.concatenate([footage.shot(seed, num_frames, size=SIZE) for seed in seeds])


def _config(folder: Path, output: Path, **changes: Any) -> CurateConfig:
    # The blobs of the test footage are soft by design; what blur means is tested elsewhere.
    base: dict[str, Any] = {"blur": BlurConfig(min=None)}
    return CurateConfig(input=str(folder), output=str(output), **(base | changes))


def _rows(output: Path, name: str = "clips") -> list[dict[str, Any]]:
    return pq.read_table(output / f"{name}.parquet").to_pylist()


def _failures(output: Path) -> list[dict[str, Any]]:
    lines = (output / "failed.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def _tars(output: Path) -> dict[str, str]:
    return {
        str(p.relative_to(output)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted((output / "shards").rglob("*.tar"))
    }


def _check_identity(result: CurateResult) -> None:
    s = result.summary
    out = (
        s["seconds_kept"] + sum(s["seconds_rejected"].values()) + sum(s["seconds_failed"].values())
    )
    assert out == pytest.approx(s["seconds_in"], abs=1e-6)
    clips = s["clips_kept"] + sum(s["clips_rejected"].values()) + sum(s["clips_failed"].values())
    assert clips == s["clips_in"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, CurateResult]:
    """Good, rotated, variable, short, still, dark, hostile, copied and bad files at once."""
    folder = tmp_path_factory.mktemp("in")
    output = tmp_path_factory.mktemp("out") / "curated"
    footage.write(folder / "cuts.mp4", _shots(1, 2, 3))
    footage.write(folder / "turned.mp4", _shots(4), rotation_deg=90)
    steps = [33, 100, 50] * 20
    footage.write(
        folder / "sub" / "vfr.mkv",
        _shots(5, 6),
        ticks=np.cumsum([700, *steps[:-1]]).tolist(),
        time_base=Fraction(1, 1000),
    )
    footage.write(folder / "still.mp4", np.repeat(_shots(7, num_frames=1), 40, axis=0))
    footage.write(folder / "dark.mp4", _shots(8) // 40)
    footage.write(folder / "short.mp4", _shots(9, num_frames=8))
    hostile = folder / "a 'quoted' \"<script>alert(1)<b>\nnew line ünïcode \u2028.mp4"
    footage.write(hostile.with_name("plain.mp4"), _shots(10))
    (folder / "plain.mp4").rename(hostile)
    shutil.copy(folder / "cuts.mp4", folder / "zcopy.mp4")
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "text.mp4").write_text("words " * 100)
    footage.write_audio(folder / "sound.m4a")
    footage.write(folder / "tiny.mp4", np.zeros((10, 16, 16, 3), np.uint8))
    footage.write(folder / "one.mp4", _shots(11, num_frames=1))
    (folder / "notes.pdf").write_bytes(b"%PDF")
    (folder / "cuts.txt").write_text("Blobs slide by.", encoding="utf-8")
    (folder / "turned.txt").write_bytes(b"\xff\xfe\xfa")
    return folder, output, curate(_config(folder, output))


def test_every_second_and_clip_is_accounted_for(mixed: tuple[Path, Path, CurateResult]) -> None:
    _, output, result = mixed
    _check_identity(result)
    summary = result.summary
    assert json.loads((output / "summary.json").read_text()) == summary
    assert set(summary["seconds_rejected"]) == {"dark", "duplicate", "static", "short"}
    assert set(summary["seconds_failed"]) == {
        "empty",
        "no_video_stream",
        "not_a_video",
        "too_few_frames",
        "too_small",
    }
    # cuts 3, turned 1, vfr 2, hostile 1
    assert summary["clips_kept"] == 7
    assert summary["decodes"] == {"analysis": 7, "transcode": 4}
    assert summary["files_ignored"] == ["notes.pdf"]
    assert "not UTF-8" in summary["caption_problems"]["turned.txt"]
    assert result.exit_code == 1


def test_bad_files_are_named_with_a_command(mixed: tuple[Path, Path, CurateResult]) -> None:
    folder, output, _ = mixed
    by_source = {entry["source"]: entry for entry in _failures(output)}
    assert {source: entry["reason"] for source, entry in by_source.items()} == {
        "empty.mp4": "empty",
        "one.mp4": "too_few_frames",
        "sound.m4a": "no_video_stream",
        "text.mp4": "not_a_video",
        "tiny.mp4": "too_small",
    }
    command = by_source["text.mp4"]["command"]
    assert command.startswith(f"vfm curate input={folder}/text.mp4 output=")
    assert "blur.min=null" in command


def test_tables_tell_of_every_clip(mixed: tuple[Path, Path, CurateResult]) -> None:
    _, output, _ = mixed
    clips = _rows(output)
    videos = {row["source"]: row for row in _rows(output, "videos")}
    assert videos["zcopy.mp4"]["status"] == "duplicate"
    assert videos["turned.mp4"]["rotation_deg"] == 90
    cuts = [row for row in clips if row["source"] == "cuts.mp4"]
    assert [(row["start_s"], row["end_s"]) for row in cuts] == [(0, 1.5), (1.5, 3), (3, 4.5)]
    assert {row["caption"] for row in cuts} == {"Blobs slide by."}
    assert {row["caption_source"] for row in cuts} == {"cuts.txt"}
    for row in clips:
        assert row["kept"] == (row["reject_reason"] is None)
        assert row["thumbnail"] is None or (output / row["thumbnail"]).is_file()
        assert row["thumbnail"] is not None or row["reject_reason"] == "short"
        assert (row["score_motion"] is None) == (not row["valid_motion"])
    hostile = [row["source"] for row in clips if "<script>" in row["source"]]
    assert len(hostile) == 1
    assert "\n" in hostile[0]
    assert all(name.replace("-", "").isalnum() for name in (row["clip_id"] for row in clips))


def test_shards_hold_exactly_the_frames_of_each_clip(
    mixed: tuple[Path, Path, CurateResult], tmp_path: Path
) -> None:
    folder, output, _ = mixed
    shards = output / "shards"
    kept = {row["clip_id"]: row for row in _rows(output) if row["kept"]}
    seen = set()
    for shard in read_manifest(shards).shards:
        tar = (shards / shard.path).read_bytes()
        assert hashlib.sha256(tar).hexdigest() == shard.sha256
        for row in read_index(shards / shard.index_path).to_pylist():
            about = json.loads(tar[row["json_offset"] :][: row["json_bytes"]])
            video = tar[row["video_offset"] :][: row["video_bytes"]]
            clip = kept[row["clip_id"]]
            seen.add(row["clip_id"])
            assert about["source"] == clip["source"]
            assert row["caption_bytes"] == len((clip["caption"] or "").encode())
            assert shard.path.startswith(clip["bucket"])
            source = read_frames(
                folder / clip["source"], start_s=clip["start_s"], end_s=clip["end_s"]
            )
            wanted, got = list(source), list(read_frames(video))
            # Frame for frame, at the same distances, from zero.
            times = [frame.pts_s - wanted[0].pts_s for frame in wanted]
            assert [frame.pts_s for frame in got] == pytest.approx(times, abs=1e-4)
            for a, b in zip(wanted, got, strict=True):
                assert np.abs(a.rgb.astype(int) - b.rgb).mean() < 6
            path = tmp_path / "clip.mp4"
            path.write_bytes(video)
            info = probe(path)
            assert (info.width, info.height, info.rotation_deg) == (row["width"], row["height"], 0)
            assert info.duration_s == pytest.approx(row["duration_s"], abs=0.011)
            frames_at = {round(frame.pts_s, 4) for frame in got}
            assert row["keyframes_s"][0] == 0
            assert {round(at, 4) for at in row["keyframes_s"]} <= frames_at
    assert seen == set(kept)


def test_running_again_changes_nothing_and_decodes_nothing(
    mixed: tuple[Path, Path, CurateResult],
) -> None:
    folder, output, first = mixed
    before = _tars(output)
    tables = [(output / name).read_bytes() for name in ("clips.parquet", "videos.parquet")]
    again = curate(_config(folder, output))
    assert _tars(output) == before
    assert [(output / n).read_bytes() for n in ("clips.parquet", "videos.parquet")] == tables
    assert again.exit_code == first.exit_code
    assert "analyse" not in again.summary["stages"]
    assert "transcode" not in again.summary["stages"]
    assert not list((output / "ledger" / "spool").glob("*"))


def test_new_input_adds_shards_and_rewrites_none(tmp_path: Path) -> None:
    folder, output = tmp_path / "in", tmp_path / "out"
    footage.write(folder / "a.mp4", _shots(21, 22))
    curate(_config(folder, output))
    before = _tars(output)
    ids = {row["clip_id"] for row in _rows(output)}
    footage.write(folder / "0first.mp4", _shots(23))
    shutil.copy(folder / "a.mp4", folder / "0copy.mp4")
    result = curate(_config(folder, output))
    after = _tars(output)
    assert {name: after[name] for name in before} == before
    assert len(after) > len(before)
    assert ids < {row["clip_id"] for row in _rows(output)}
    assert result.summary["seconds_rejected"] == {"duplicate": 3.0}
    _check_identity(result)


def test_other_parameters_need_another_folder(tmp_path: Path) -> None:
    folder, output = tmp_path / "in", tmp_path / "out"
    footage.write(folder / "a.mp4", _shots(24))
    curate(_config(folder, output))
    with pytest.raises(ConfigError, match=r"transcode\.crf was 18, is 30"):
        curate(_config(folder, output, transcode=TranscodeConfig(crf=30)))


def test_tars_that_no_manifest_names_are_removed(tmp_path: Path) -> None:
    footage.write(tmp_path / "in" / "a.mp4", _shots(1, 2))
    config = _config(tmp_path / "in", tmp_path / "out")
    curate(config)
    tars, shards = _tars(tmp_path / "out"), tmp_path / "out" / "shards"
    orphan = shards / "1x1_240p_0-2s"
    orphan.mkdir()
    for suffix in (".tar", ".index.arrow", ".tar.idx"):
        (orphan / f"1x1_240p_0-2s-000000{suffix}").write_bytes(b"left by a kill")
    curate(config)
    assert _tars(tmp_path / "out") == tars
    assert not any(path.is_file() for path in orphan.iterdir())


def test_a_refused_run_leaves_the_saved_settings(tmp_path: Path) -> None:
    footage.write(tmp_path / "in" / "a.mp4", _shots(1))
    config = _config(tmp_path / "in", tmp_path / "out")
    started: list[str] = []
    curate(config, on_start=lambda: started.append("first"))
    other = _config(tmp_path / "in", tmp_path / "out", transcode=TranscodeConfig(crf=30))
    with pytest.raises(ConfigError, match="other parameters"):
        curate(other, on_start=lambda: started.append("second"))
    with only_driver(tmp_path / "out" / "ledger"), pytest.raises(VfmError):
        curate(config, on_start=lambda: started.append("third"))
    assert started == ["first"]


def test_the_folder_of_a_training_run_is_refused(tmp_path: Path) -> None:
    footage.write(tmp_path / "in" / "a.mp4", _shots(1))
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ConfigError, match="is the folder of a training run"):
        curate(_config(tmp_path / "in", tmp_path / "run"))


def test_names_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[2Jb\nc é 犬") == "a\\x1b[2Jb\\nc é 犬"


def test_small_targets_give_several_tars_of_the_same_clips(tmp_path: Path) -> None:
    footage.write(tmp_path / "in" / "a.mp4", _shots(25, 26, 27))
    output = tmp_path / "out"
    result = curate(_config(tmp_path / "in", output, shard=ShardConfig(target_bytes=1)))
    manifest = read_manifest(output / "shards")
    assert [shard.num_clips for shard in manifest.shards] == [1, 1, 1]
    assert result.exit_code == 0


def test_nothing_kept_is_exit_code_three(tmp_path: Path) -> None:
    footage.write(tmp_path / "in" / "a.mp4", _shots(28))
    config = _config(tmp_path / "in", tmp_path / "out", motion=MotionConfig(min=50.0))
    result = curate(config)
    assert result.exit_code == 3
    assert result.summary["clips_rejected"] == {"low_motion": 1}
    assert (tmp_path / "out" / "report" / "index.html").is_file()


def test_a_clip_that_cannot_be_encoded_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from common.media import VideoReader

    footage.write(tmp_path / "in" / "a.mp4", _shots(29, 30, 31))
    whole = VideoReader.yuv

    def broken(self: VideoReader, picture: Any, *, size: tuple[int, int]) -> Any:
        if 1.5 <= float(picture.time) < 3.0:
            raise ValueError("picture of the second clip")
        return whole(self, picture, size=size)

    monkeypatch.setattr(VideoReader, "yuv", broken)
    result = curate(_config(tmp_path / "in", tmp_path / "out"))
    assert result.exit_code == 1
    assert result.summary["clips_kept"] == 2
    assert result.summary["clips_failed"] == {"error": 1}
    _check_identity(result)
    (entry,) = _failures(tmp_path / "out")
    assert "picture of the second clip" in entry["detail"]
    monkeypatch.undo()
    healed = curate(_config(tmp_path / "in", tmp_path / "out"))
    assert (healed.exit_code, healed.summary["clips_kept"]) == (0, 3)


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = [
        (tmp_path / "nowhere", tmp_path / "out", "does not exist"),
        (empty, tmp_path / "out", "holds no video"),
        (empty, empty / "out", "lies inside input"),
        (empty, tmp_path, "lies inside output"),
    ]
    for folder, output, message in cases:
        with pytest.raises(VfmError, match=message):
            curate(_config(folder, output))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CurateConfig(input="", output="", max_clip_s=1.0), "at least twice min_clip_s"),
        (lambda: TranscodeConfig(crf=99), "transcode.crf=99"),
        (lambda: TranscodeConfig(preset="warp"), "transcode.preset=warp"),
        (lambda: ShardConfig(aspects=["wide"]), "shard.aspects=wide"),
        (lambda: ShardConfig(durations_s=[5, 2]), "positive and rising"),
        (lambda: MotionConfig(min=2.0, max=1.0), "motion.min=2.0"),
    ],
)
def test_impossible_settings_are_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
