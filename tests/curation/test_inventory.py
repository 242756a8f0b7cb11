"""A folder curated again after its input changed: mended, renamed, replaced, copied, captioned.

One process, no network, no GPU; footage is made here.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from common.errors import ConfigError
from curation.config import CurateConfig, ShotsConfig, TranscodeConfig
from curation.decisions import BlurConfig, MotionConfig
from curation.executors.local import LocalExecutor
from curation.pipeline import Graph, Memory
from curation.run import CurateResult, curate
from curation.shard import read_sharded
from curation.sources import video_id_of
from curation.stage import Failure, Item
from tests.curation import footage

NOTHING_MOVES = MotionConfig(min=50.0)
"""Keeps nothing, so that no shard is written."""


def _shots(*seeds: int, num_frames: int = 30) -> np.ndarray:
    return np.concatenate([footage.shot(seed, num_frames) for seed in seeds])


def _run(root: Path, executor: Any = None, **changes: Any) -> CurateResult:
    base: dict[str, Any] = {"blur": BlurConfig(min=None)}
    config = CurateConfig(input=str(root / "in"), output=str(root / "out"), **(base | changes))
    return curate(config, executor=executor)


def _videos(root: Path) -> list[tuple[str, str]]:
    rows = pq.read_table(root / "out" / "videos.parquet").to_pylist()
    return [(row["source"], row["status"]) for row in rows]


def _captions(root: Path) -> list[str | None]:
    return pq.read_table(root / "out" / "clips.parquet").column("caption").to_pylist()


def _in_shards(root: Path) -> list[str]:
    return [clip.caption for clip in read_sharded(root / "out" / "shards")[1].values()]


def _failures(root: Path) -> list[dict[str, Any]]:
    lines = (root / "out" / "failed.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def test_a_mended_file_recovers(tmp_path: Path) -> None:
    path = footage.write(tmp_path / "in" / "a.mp4", _shots(1))
    footage.write(tmp_path / "in" / "b.mp4", _shots(2))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])
    assert _run(tmp_path).exit_code == 1
    path.write_bytes(whole)
    assert _run(tmp_path).exit_code == 0
    assert _videos(tmp_path) == [("a.mp4", "ok"), ("b.mp4", "ok")]
    assert _failures(tmp_path) == []


def test_a_renamed_or_replaced_file_leaves_nothing_behind(tmp_path: Path) -> None:
    path = footage.write(tmp_path / "in" / "a.mp4", _shots(1))
    _run(tmp_path, motion=NOTHING_MOVES)
    path.rename(path.with_name("b.mp4"))
    assert _run(tmp_path, motion=NOTHING_MOVES).summary["seconds_in"] == 1.5
    assert _videos(tmp_path) == [("b.mp4", "ok")]
    footage.write(tmp_path / "in" / "b.mp4", _shots(2))
    assert _run(tmp_path).summary["clips_kept"] == 1
    (row,) = pq.read_table(tmp_path / "out" / "clips.parquet").to_pylist()
    assert row["video_id"] == video_id_of(tmp_path / "in" / "b.mp4")


def test_a_copy_takes_the_place_of_its_original(tmp_path: Path) -> None:
    path = footage.write(tmp_path / "in" / "a.mp4", _shots(1))
    shutil.copy(path, path.with_name("b.mp4"))
    _run(tmp_path, motion=NOTHING_MOVES)
    assert _videos(tmp_path) == [("a.mp4", "ok"), ("b.mp4", "duplicate")]
    path.unlink()
    assert _run(tmp_path).exit_code == 0
    assert _videos(tmp_path) == [("b.mp4", "ok")]


def test_what_shards_hold_stays_under_its_name(tmp_path: Path) -> None:
    path = footage.write(tmp_path / "in" / "a.mp4", _shots(1))
    _run(tmp_path)
    path.rename(path.with_name("b.mp4"))
    footage.write(path, _shots(2))
    result = _run(tmp_path)
    assert (result.exit_code, result.summary["clips_kept"]) == (0, 2)
    assert sorted(_videos(tmp_path)) == [("a.mp4", "ok"), ("a.mp4", "ok"), ("b.mp4", "duplicate")]


def test_a_part_of_the_input_is_no_copy(tmp_path: Path) -> None:
    footage.write(tmp_path / "in" / "sub" / "a.mp4", _shots(1))
    _run(tmp_path)
    part = CurateConfig(
        input=str(tmp_path / "in" / "sub"),
        output=str(tmp_path / "out"),
        blur=BlurConfig(min=None),
    )
    assert curate(part).summary["seconds_in"] == 1.5
    assert _videos(tmp_path) == [("sub/a.mp4", "ok")]


def test_captions_come_from_any_name(tmp_path: Path) -> None:
    path = footage.write(tmp_path / "in" / "a.mp4", _shots(1))
    shutil.copy(path, path.with_name("b.mp4"))
    path.with_name("b.txt").write_text("blobs")
    _run(tmp_path)
    assert _captions(tmp_path) == _in_shards(tmp_path) == ["blobs"]


def test_captions_that_come_too_late_are_counted(tmp_path: Path) -> None:
    path = footage.write(tmp_path / "in" / "a.mp4", _shots(1))
    assert _run(tmp_path).summary["captions_not_in_shards"] == 0
    path.with_suffix(".txt").write_text("hello")
    late = _run(tmp_path)
    assert late.summary["captions_not_in_shards"] == 1
    assert late.summary["captioned_clips_kept"] == 0
    assert late.exit_code == 1
    assert _captions(tmp_path) == [None]
    assert _in_shards(tmp_path) == [""]


class Meddling(LocalExecutor):
    """Replaces a file right before a stage."""

    def __init__(self, stage: str, path: Path, data: bytes) -> None:
        self._stage, self._path, self._data = stage, path, data

    def run(
        self,
        graph: Graph,
        items: Iterable[Item],
        memory: Memory,
        *,
        total: int | None = None,
    ) -> Iterator[Any | Failure]:
        if graph.order[0] == self._stage:
            if self._stage == "analyse":
                items = list(items)  # located before they are another's
            self._path.write_bytes(self._data)
        yield from super().run(graph, items, memory, total=total)


@pytest.mark.parametrize(("stage", "reason"), [("analyse", "changed"), ("transcode", "missing")])
def test_results_are_never_filed_under_other_content(
    tmp_path: Path, stage: str, reason: str
) -> None:
    path = footage.write(tmp_path / "in" / "a.mp4", _shots(1, 2))
    mine = path.read_bytes()
    other = footage.write(tmp_path / "other.mp4", _shots(3, num_frames=40)).read_bytes()
    meddled = _run(tmp_path, executor=Meddling(stage, path, other))
    assert meddled.exit_code == 3
    assert {entry["reason"] for entry in _failures(tmp_path)} == {reason}
    path.write_bytes(mine)
    healed = _run(tmp_path)
    assert (healed.exit_code, healed.summary["clips_kept"]) == (0, 2)


def test_shards_without_their_ledger_are_not_added_to(tmp_path: Path) -> None:
    footage.write(tmp_path / "in" / "a.mp4", _shots(1))
    _run(tmp_path)
    shutil.rmtree(tmp_path / "out" / "ledger")
    for _ in range(2):
        with pytest.raises(ConfigError, match="not the ledger .* choose another output folder"):
            _run(tmp_path, transcode=TranscodeConfig(crf=40))


def test_one_bad_name_leaves_the_others_alone(tmp_path: Path) -> None:
    path = footage.write(tmp_path / "in" / "a.mp4", _shots(1))
    (tmp_path / "in" / "dangling.mp4").symlink_to("/nowhere/q.mp4")
    bad = Path(str(path.parent) + "/na\udcefve.mp4")
    shutil.copy(path, bad)
    assert _run(tmp_path).exit_code == 1
    entries = {entry["source"]: entry for entry in _failures(tmp_path)}
    assert {name: entry["reason"] for name, entry in entries.items()} == {
        "dangling.mp4": "missing",
        "na\\xefve.mp4": "bad_name",
    }
    # The whole path, so that the command works from anywhere.
    assert f"input={tmp_path}/in/dangling.mp4" in entries["dangling.mp4"]["command"]
    config = CurateConfig(input=str(bad), output=str(tmp_path / "alone"))
    assert curate(config).exit_code == 3


def test_slides_are_rejected_as_sparse(tmp_path: Path) -> None:
    ticks = [n * 40 for n in range(40)] + [31_600 + n * 40 for n in range(40)]
    footage.write(
        tmp_path / "in" / "a.mkv",
        _shots(1, num_frames=80),
        ticks=ticks,
        time_base=Fraction(1, 1000),
    )
    result = _run(tmp_path, max_clip_s=2.0, shots=ShotsConfig(detector="stride", stride_s=1e4))
    assert result.summary["seconds_rejected"] == {"sparse": pytest.approx(30.04)}
    rows = pq.read_table(tmp_path / "out" / "clips.parquet").to_pylist()
    assert max(row["end_s"] - row["start_s"] for row in rows if row["kept"]) <= 2.0
