"""Labels and yields through the whole of curation. Footage made here; one process."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from common.errors import ConfigError
from curation.config import CurateConfig, RefilterConfig
from curation.decide import decide
from curation.decisions import BlurConfig, Decisions, MotionConfig
from curation.folder import settings_of
from curation.labels import read_labels
from curation.refilter import preview, refilter
from curation.run import curate
from tests.curation import footage
from tests.curation.test_limits import clips as synthetic

SPEEDS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0)


def config(root: Path, **changes: Any) -> CurateConfig:
    base: dict[str, Any] = {"blur": BlurConfig(min=None)} | changes
    return CurateConfig(input=str(root / "in"), output=str(root / "out"), **base)


@pytest.fixture
def footage_of_six(tmp_path: Path) -> Path:
    """One clip per video, of 1.5 s, moving faster and faster; too dark or bright is none."""
    for seed, step_px in enumerate(SPEEDS):
        frames = footage.shot(seed, 30, size=(256, 144), step_px=step_px)
        footage.write(tmp_path / "in" / f"{seed}.mp4", frames)
    return tmp_path


def other(folder: Path, **changes: Any) -> RefilterConfig:
    settings = settings_of(str(folder))
    names = [field.name for field in dataclasses.fields(Decisions)]
    return RefilterConfig(
        folder=str(folder), **({name: getattr(settings, name) for name in names} | changes)
    )


def clips_of(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder / "clips.parquet").to_pylist()


def test_a_yield_of_a_folder(footage_of_six: Path) -> None:
    root = footage_of_six
    first = curate(config(root, target_yield=0.5)).summary
    assert first["seconds_kept"] == pytest.approx(0.5 * first["seconds_in"], abs=1.5)
    assert first["decided_by"] == {"setting": "target_yield", "value": 0.5}
    motion = first["thresholds"]["motion"]
    assert motion["min"] > 0.0005 and motion["typed"] == {"min": 0.0005, "max": None}
    assert first["thresholds"]["blur"]["min"] is None, "a limit that is null stays so"
    assert curate(config(root, target_yield=0.5)).summary["thresholds"] == first["thresholds"]
    # More footage does not move the limits that the shards were made by.
    footage.write(root / "in" / "7.mp4", footage.shot(77, 30, size=(256, 144), step_px=1.0))
    second = curate(config(root, target_yield=0.5)).summary
    assert second["thresholds"] == first["thresholds"]
    with pytest.raises(ConfigError, match=r"target_yield was 0\.5, is 0\.9.*target_yield=0\.9"):
        curate(config(root, target_yield=0.9))
    # Decided again, they follow all the clips that there are.
    result = refilter(other(root / "out", target_yield=0.9)).summary
    assert result["seconds_kept"] == pytest.approx(0.9 * result["seconds_in"], abs=1.5)
    back = refilter(other(root / "out", target_yield=None)).summary
    assert back["decided_by"] is None and back["thresholds"]["motion"]["min"] == 0.0005


def test_labels_of_a_folder(footage_of_six: Path) -> None:
    root = footage_of_six
    footage.write(root / "in" / "short.mp4", footage.shot(9, 10, size=(256, 144)))
    curate(config(root))
    clips = {clip["source"]: clip for clip in clips_of(root / "out")}
    ids = {name: clip["clip_id"] for name, clip in clips.items()}
    assert [name for name, clip in clips.items() if not clip["kept"]] == ["short.mp4"]
    slowest = [f"{number}.mp4" for number in range(6)]
    slowest.sort(key=lambda name: clips[name]["score_motion"])
    labels = root / "labels.csv"
    labels.write_text(f"clip_id,keep\n{ids[slowest[1]]},0\n{ids[slowest[2]]},1\n")
    summary = preview(other(root / "out", labels=str(labels)))
    assert summary["clips_kept"] < 6
    refilter(other(root / "out", labels=str(labels)))
    kept = {clip["source"]: clip["kept"] for clip in clips_of(root / "out")}
    assert not kept[slowest[1]] and kept[slowest[2]]
    written = json.loads((root / "out" / "summary.json").read_text())
    assert written["decided_by"] == {"setting": "labels", "value": str(labels)}

    twisted = root / "labels.json"
    twisted.write_text(json.dumps({clips["short.mp4"]["clip_id"]: True}))
    with pytest.raises(
        ConfigError, match=rf"{clips['short.mp4']['clip_id']} cannot be kept, being"
    ):
        refilter(other(root / "out", labels=str(twisted)))
    twisted.write_text(json.dumps({"nobody": True}))
    with pytest.raises(ConfigError, match="no clip here is called nobody"):
        refilter(other(root / "out", labels=str(twisted)))
    assert {clip["source"]: clip["kept"] for clip in clips_of(root / "out")} == kept


def test_contradictions_are_named(tmp_path: Path) -> None:
    found = synthetic(motion=[0.1, 0.2, 0.3], luma=[90.0, 91.0, 92.0])
    (tmp_path / "labels.json").write_text('{"c0": 1, "c1": 0, "c2": 1}')
    wanted = config(tmp_path, labels=str(tmp_path / "labels.json"))
    with pytest.raises(ConfigError, match="c1 cannot be rejected: on every score it lies among"):
        decide(wanted, found)


def test_labels_of_a_first_curation(footage_of_six: Path) -> None:
    """Ids are a function of content and span, so labels may come before the folder."""
    root = footage_of_six
    curate(config(root))
    clips = clips_of(root / "out")
    ranked = sorted(clips, key=lambda clip: clip["score_motion"])
    labels = root / "labels.csv"
    labels.write_text(
        f"clip_id,keep\n{ranked[0]['clip_id']},reject\n{ranked[-1]['clip_id']},keep\n"
    )
    again = CurateConfig(
        input=str(root / "in"),
        output=str(root / "again"),
        labels=str(labels),
        blur=BlurConfig(min=None),
        motion=MotionConfig(min=None),
    )
    curate(again)
    kept = {clip["clip_id"]: clip["kept"] for clip in clips_of(root / "again")}
    assert not kept[ranked[0]["clip_id"]] and kept[ranked[-1]["clip_id"]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "id,keep\nx,1\n", "its first line must be clip_id,keep"),
        ("a.csv", "clip_id,keep\nx,maybe\n", "x has keep=maybe; 1 keeps, 0 rejects"),
        ("a.csv", "clip_id,keep\nx,1\nx,0\n", "x is both kept and rejected"),
        ("a.csv", "clip_id,keep\n", "labels no clip"),
        ("a.json", "[1]", r"a list of \{clip_id, keep\} is needed"),
        ("a.json", "{", "cannot be read as labels"),
        ("missing.csv", None, "cannot be read as labels: .*No such file"),
    ],
)
def test_files_that_are_no_labels(
    tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_labels(tmp_path / name)


def test_labels_in_every_form(tmp_path: Path) -> None:
    wanted = {"a": True, "b": False}
    (tmp_path / "a.csv").write_text("\ufeffkeep,clip_id\n1,a\nreject,b\n", encoding="utf-8")
    (tmp_path / "b.json").write_text(
        '[{"clip_id": "a", "keep": true}, {"clip_id": "b", "keep": 0}]'
    )
    (tmp_path / "c.json").write_text('{"a": "yes", "b": false}')
    assert all(read_labels(path) == wanted for path in sorted(tmp_path.iterdir()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_yield": 0.0}, "target_yield=0.0 is impossible: above 0, at most 1"),
        ({"target_yield": 1.2}, "target_yield=1.2 is impossible"),
        ({"target_yield": 0.5, "labels": "x.csv"}, "labels=x.csv set the limits too: give one"),
    ],
)
def test_impossible_wishes(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, **changes)


def test_labels_are_found_again_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Decisions(labels="x.csv").labels == str(tmp_path / "x.csv")
