"""What the report says of a curated folder, without a browser. Tier: wiring (no process group)."""

import base64
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from common.errors import DataError
from curation import decide
from curation.config import CurateConfig
from curation.report import write_report
from curation.report_columns import rules
from curation.scores import SCORES, Score
from curation.stages.analyse import ScoredClip
from tests.pages.samples import THRESHOLDS, clip_table, seconds_by_reason, write_folder


def block(html: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', html)
    assert found is not None
    return json.loads(found[1])


def numbers(column: dict[str, str]) -> list[float]:
    """A column as `readColumn` of the page gives it."""
    ((kind, text),) = column.items()
    kinds = {"f64": "<f8", "u8": "<u1", "u16": "<u2", "u32": "<u4"}
    return np.frombuffer(base64.b64decode(text), kinds[kind]).tolist()


def test_every_clip_is_on_the_page_with_its_reason_and_scores(tmp_path: Path) -> None:
    clips = clip_table(200)
    path = write_report(write_folder(tmp_path / "out", clips, num_thumbs=3))
    assert path == tmp_path / "out" / "report" / "index.html"
    data = block(path.read_text(), "clips")
    assert data["count"] == 200
    assert data["id"] == clips["clip_id"]
    names = [label["name"] for label in block(path.read_text(), "labels")]
    labels = [names[int(place)] for place in numbers(data["label"])]
    pairs = zip(clips["kept"], clips["reject_reason"], strict=True)
    assert labels == ["kept" if kept else reason for kept, reason in pairs]
    assert numbers(data["thumb"]) == [1] * 3 + [0] * 197
    sources = [data["source"]["values"][int(place)] for place in numbers(data["source"]["rows"])]
    assert sources == clips["source"]
    assert len(data["source"]["values"]) == len(set(sources))
    assert data["source"]["duration_s"] == [380.0] * 6
    shown = numbers(data["scores"]["motion"])
    for i, valid in enumerate(clips["valid_motion"]):
        assert shown[i] == clips["score_motion"][i] if valid else np.isnan(shown[i])
    limits = {(rule["score"], rule["side"]): rule["limit"] for rule in data["rules"]}
    for name, sides in THRESHOLDS.items():
        for side in ("min", "max"):
            assert limits[name, side] == sides.get(side)


def test_limits_and_reasons_are_those_of_the_decision() -> None:
    """The page lets a viewer try other limits; it must know the same reasons as the run."""
    sections: dict[str, dict[str, float]] = {}
    for rule in decide.RULES:
        section, name = rule.setting.split(".")
        sections.setdefault(section, {})[name] = 0.1 if rule.side == "min" else 0.5
    kinds = {field.name: field.default_factory for field in dataclasses.fields(CurateConfig)}
    made: dict[str, Any] = {name: kinds[name](**values) for name, values in sections.items()}  # type: ignore
    config = CurateConfig(input="in", output="out", **made)
    decision = decide.decide(config, [])
    table = {f"score_{name}": [] for name in SCORES}
    shown = rules({"thresholds": decision.thresholds()}, table)
    assert [rule["setting"] for rule in shown] == [rule.setting for rule in decide.RULES]
    fine = {name: Score(value=0.3, valid=True) for name in SCORES}
    for rule in shown:
        section, name = rule["setting"].split(".")
        assert getattr(getattr(config, section), name) == rule["limit"]
        value = rule["limit"] * (0.5 if rule["side"] == "min" else 2.0)
        scores = {**fine, rule["score"]: Score(value=value, valid=True)}
        clip = ScoredClip(
            clip_id="a", start_us=0, end_us=2_000_000, num_frames=50, scores=scores, crop=None
        )
        assert decision.reject_reason(clip) == rule["reason"]


def test_what_was_asked_for_stands_beside_what_it_was() -> None:
    asked = {"blur": {"min": 1.5, "max": None, "typed": {"min": "p20", "max": None}}}
    low, high = rules({"thresholds": asked}, {"score_blur": []})
    assert (low["limit"], low["typed"]) == (1.5, "p20")
    assert (high["limit"], high["typed"]) == (None, None)
    assert rules({}, {"score_other": []}) == []


def test_headline_and_legend_add_up_to_the_footage(tmp_path: Path) -> None:
    clips = clip_table(300)
    failures = [{"id": "v9", "stage": "probe", "reason": "truncated", "command": "vfm curate x"}]
    html = write_report(write_folder(tmp_path / "out", clips, failures=failures)).read_text()
    assert f"{sum(clips['kept'])} of 300 clips kept" in html
    shares = [float(share) for share in re.findall(r'"num">([\d.]+)%</td></tr>', html)]
    kept, rejected = seconds_by_reason(clips)
    assert shares[-1] == 100.0
    assert len(shares) == 1 + len(rejected) + 1 + 1  # kept, reasons, failed, total
    assert sum(shares[:-1]) == pytest.approx(100.0, abs=0.05 * len(shares))
    assert shares[0] == pytest.approx(100 * kept / (kept + sum(rejected.values()) + 4.5), abs=0.06)
    assert "failed: truncated" in html
    assert re.search(r'class="reasons num">.*truncated</span></span> 1</span></p>', html)
    assert 'class="warning"' not in html


def test_a_clip_that_failed_is_neither_kept_nor_rejected(tmp_path: Path) -> None:
    clips = clip_table(40)
    clips["kept"], clips["reject_reason"] = [True] * 40, [None] * 40
    whole, _ = seconds_by_reason(clips)
    clips["failed_reason"] = [None] * 40
    clips["failed_reason"][7] = "encoder"
    lost = clips["end_s"][7] - clips["start_s"][7]
    folder = write_folder(tmp_path / "out", clips)
    clips["kept"][7] = False
    pyarrow.parquet.write_table(pyarrow.table(clips), folder / "clips.parquet")
    summary = {"seconds_in": whole, "seconds_kept": whole - lost, "seconds_rejected": {}}
    summary["seconds_failed"] = {"encoder": lost}
    (folder / "summary.json").write_text(json.dumps(summary))
    html = write_report(folder).read_text()
    data = block(html, "clips")
    labels = [(label["name"], label["kind"]) for label in block(html, "labels")]
    assert labels == [("kept", "kept"), ("failed: encoder", "failed")]
    assert numbers(data["label"]) == [int(i == 7) for i in range(40)]
    assert "39 of 40 clips kept" in html
    assert 'class="warning"' not in html


def test_footage_that_no_part_accounts_for_is_said(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "out", clip_table(20))
    summary = json.loads((folder / "summary.json").read_text())
    summary["seconds_in"] += 3.2
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "3.2 s of footage is in no part" in write_report(folder).read_text()


def test_seconds_of_the_summary_win_over_those_of_the_clips(tmp_path: Path) -> None:
    """Footage too short to become a clip is only in the summary."""
    folder = write_folder(tmp_path / "out", clip_table(20))
    summary = json.loads((folder / "summary.json").read_text())
    summary["seconds_in"] += 90.0
    summary["seconds_rejected"]["short"] = 90.0
    (folder / "summary.json").write_text(json.dumps(summary))
    html = write_report(folder).read_text()
    assert re.search(
        r'short</span></span></td><td class="num"></td><td class="num">1 min 30 s', html
    )
    assert 'class="warning"' not in html


def test_a_table_of_three_columns_is_enough(tmp_path: Path) -> None:
    few = {"clip_id": ["a", "b"], "kept": [True, False], "reject_reason": [None, "blur"]}
    pyarrow.parquet.write_table(pyarrow.table(few), tmp_path / "clips.parquet")
    html = write_report(tmp_path).read_text()
    assert "1 of 2 clips kept" in html
    assert [label["name"] for label in block(html, "labels")] == ["kept", "blur"]
    assert block(html, "tables")["failures"]["rows"] == []


def test_a_folder_without_clips_says_so(tmp_path: Path) -> None:
    empty = pyarrow.table(
        {"clip_id": pyarrow.array([], "string"), "kept": pyarrow.array([], "bool")}
    )
    pyarrow.parquet.write_table(empty, tmp_path / "clips.parquet")
    assert "No clip came out of the footage" in write_report(tmp_path).read_text()


def test_failures_keep_their_command_and_odd_lines(tmp_path: Path) -> None:
    failures = [{"id": "a\u2028b", "reason": "no_moov", "command": "vfm curate 'a\nb'"}]
    html = write_report(write_folder(tmp_path / "o", clip_table(3), failures=failures)).read_text()
    found = block(html, "tables")["failures"]
    assert found["heads"] == ["Item", "Reason", "Reproduce with"]
    assert found["rows"] == [["a\u2028b", "no_moov", "vfm curate 'a\nb'"]]


def test_the_same_folder_gives_the_same_page(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "out", clip_table(30))
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no clips\.parquet in"):
        write_report(tmp_path)
    folder = write_folder(tmp_path / "out", clip_table(3))
    (folder / "failed.jsonl").write_text('{"id": 1}\n{"id":')
    with pytest.raises(DataError, match=r"failed\.jsonl' line 2"):
        write_report(folder)
    (folder / "clips.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"clips\.parquet' is no readable parquet"):
        write_report(folder)
