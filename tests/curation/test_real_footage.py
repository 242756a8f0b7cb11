"""Real footage: cuts, defects and damaged files against their ground truth.

Skipped where the footage is absent. One process, no network, no GPU; two minutes on one core.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.shots import Case, score
from curation.config import AnalysisConfig, CurateConfig
from curation.decide import decide
from curation.run import curate
from curation.scores import not_measured
from curation.sources import SourceFile, video_id_of
from curation.stages.analyse import Analyse, Analysis, ScoredClip
from tests.curation.footage import real_footage
from tests.curation.test_accounting import check_sums

HEAVY = frozenset(["cuts_4k.mp4"])
"""Left to a slower test: most of the time of the whole set."""


def _truth() -> dict[str, Any]:
    raw = real_footage("raw")
    return json.loads((raw.parent / "truth.json").read_text())


_ANALYSES: dict[Path, Analysis] = {}
"""Each file is decoded once for all tests."""


def _analyse(path: Path, scratch: Path) -> Analysis:
    if path not in _ANALYSES:
        _ANALYSES[path] = _decoded(path, scratch)
    return _ANALYSES[path]


def _decoded(path: Path, scratch: Path) -> Analysis:
    stage = Analyse(CurateConfig(input="", output=""), scratch)
    item = SourceFile(source=path.name, path=str(path), content_id=video_id_of(path))
    (analysis,) = stage.process(item)
    assert isinstance(analysis, Analysis)
    return analysis


def test_cuts_and_fades(tmp_path: Path) -> None:
    counts = {"cut": np.zeros(3, int), "fade": np.zeros(3, int)}
    for name, truth in _truth().items():
        if name in HEAVY:
            continue
        analysis = _analyse(real_footage("raw") / name, tmp_path)
        assert not analysis.lost_us
        spans = [(c.start_us, c.end_us) for c in analysis.clips] + analysis.transitions_us
        assert sum(end - start for start, end in spans) == analysis.duration_us
        half = (truth["gradual_s"] or 0) / 2
        case = Case(
            name=name,
            group="",
            path="",
            tolerance_s=truth.get("tolerance_s") or 1 / truth["fps"] + 1e-3,
            cuts_s=[] if half else truth["cuts_s"],
            fades_s=[(at - half, at + half) for at in truth["cuts_s"]] if half else [],
        )
        found = [(a.end_us / 1e6, b.start_us / 1e6) for a, b in pairwise(analysis.clips)]
        for kind, of_kind in score(found, case).items():
            counts[kind] += of_kind
    for kind, (hits, false, missed) in counts.items():
        f1 = 2 * hits / (2 * hits + false + missed)
        assert f1 >= 0.95, f"{kind}: {hits} found, {false} false, {missed} missed: F1 {f1:.3f}"


def _shot_at(truth: dict[str, Any], clip: ScoredClip) -> dict[str, Any]:
    middle_s = (clip.start_us + clip.end_us) / 2e6
    shots = truth["shots"]
    return next((s for s in shots if s["start_s"] <= middle_s < s["end_s"]), shots[-1])


def test_defects_are_rejected_and_clean_shots_kept(tmp_path: Path) -> None:
    truth = _truth()["defects_h264.mp4"]
    analysis = _analyse(real_footage("raw") / "defects_h264.mp4", tmp_path)
    decision = decide(CurateConfig(input="", output=""), analysis.clips)
    reasons: dict[str | None, set[str | None]] = {}
    for clip in analysis.clips:
        defect = _shot_at(truth, clip)["defect"]
        reasons.setdefault(defect, set()).add(decision.reject_reason(clip))
        if defect == "letterbox":
            # Bars of 72 lines above and below.
            assert clip.crop == pytest.approx((0, 72, 640, 216), abs=2)
    assert not not_measured(AnalysisConfig())
    rejected = ("blur", "text_overlay", "static", "jitter", "dark")
    assert reasons == {name: {name} for name in rejected} | {"letterbox": {None}, None: {None}}


def test_clean_shots_are_kept(tmp_path: Path) -> None:
    for name, truth in _truth().items():
        if name in HEAVY or name == "defects_h264.mp4" or not truth["shots"]:
            continue
        analysis = _analyse(real_footage("raw") / name, tmp_path)
        decision = decide(CurateConfig(input="", output=""), analysis.clips)
        for shot in truth["shots"]:
            inside = [c for c in analysis.clips if _shot_at(truth, c) is shot]
            kept = [c for c in inside if decision.reject_reason(c) is None]
            kept_s = sum(c.end_us - c.start_us for c in kept) / 1e6
            # A shot in which a false cut is found may lose what is too short on its own.
            end_s = min(shot["end_s"], analysis.duration_us / 1e6)
            assert kept_s > 0.8 * (end_s - shot["start_s"]), f"{name}: {shot}"


def test_most_real_clips_are_kept(tmp_path: Path) -> None:
    wholly, partly = 0, 0
    files = sorted(real_footage("clips").glob("*.mp4"))
    for path in files:
        analysis = _analyse(path, tmp_path)
        decision = decide(CurateConfig(input="", output=""), analysis.clips)
        kept = [decision.reject_reason(clip) in (None, "short") for clip in analysis.clips]
        wholly, partly = wholly + all(kept), partly + any(kept)
    assert len(files) == 36
    assert wholly >= 33 and partly >= 34


def test_defects_stand_out_in_their_scores(tmp_path: Path) -> None:
    truth = _truth()["defects_h264.mp4"]
    analysis = _analyse(real_footage("raw") / "defects_h264.mp4", tmp_path)
    shots: dict[str | None, list[dict[str, float]]] = {}
    for clip in analysis.clips:
        found = {name: score.value for name, score in clip.scores.items() if score.valid}
        shots.setdefault(_shot_at(truth, clip)["defect"], []).append(found)
    for defect in ("jitter", "text_overlay"):
        others = [s[defect] for name, found in shots.items() if name != defect for s in found]
        assert all(s[defect] > 3 * max(others) for s in shots[defect])
    assert all(s["freeze"] == 1.0 for s in shots["static"])
    assert all(s["freeze"] == 0.0 for s in shots[None])
    assert all(s["letterbox"] == pytest.approx(0.4, abs=0.01) for s in shots["letterbox"])
    assert all(s["crushed"] > 0.9 for s in shots["dark"])


def test_bad_files_are_salvaged_or_refused(tmp_path: Path) -> None:
    result = curate(CurateConfig(input=str(real_footage("bad")), output=str(tmp_path / "out")))
    assert result.exit_code == 1
    check_sums(result.summary, tmp_path / "out")
    assert {"damaged", "truncated"} <= result.summary["seconds_failed"].keys()
    rows = pq.read_table(tmp_path / "out" / "videos.parquet").to_pylist()
    assert {row["source"]: (row["status"], row["reason"]) for row in rows} == {
        "audio_only.m4a": ("refused", "no_video_stream"),
        "damaged_middle.mp4": ("salvaged", "damaged"),
        "empty.mp4": ("refused", "empty"),
        "one_frame.mp4": ("refused", "too_few_frames"),
        "text.mp4": ("refused", "not_a_video"),
        "tiny_2x2.mp4": ("refused", "too_small"),
        "truncated_faststart.mp4": ("salvaged", "truncated"),
        "truncated_no_moov.mp4": ("refused", "no_moov"),
    }
    by_source = {row["source"]: row for row in rows}
    for name in ("damaged_middle.mp4", "truncated_faststart.mp4"):
        row = by_source[name]
        # Both are copies of one video of 37.88 s.
        assert row["duration_s"] == pytest.approx(37.88, abs=0.05)
        assert 0 < row["lost_s"] < 15
    clips = pq.read_table(tmp_path / "out" / "clips.parquet").to_pylist()
    for source in by_source.values():
        inside = [clip for clip in clips if clip["source"] == source["source"]]
        saved_s = sum(clip["end_s"] - clip["start_s"] for clip in inside)
        if source["status"] == "salvaged":
            assert saved_s + source["lost_s"] == pytest.approx(source["duration_s"], abs=1e-6)


def test_a_large_picture_needs_little_memory(tmp_path: Path) -> None:
    """4K, both decodes, in a process of its own: the peak belongs to the whole process."""
    import os
    import subprocess
    import sys

    source = real_footage("raw") / "cuts_4k.mp4"
    script = (
        "import resource, sys\n"
        "from curation.config import CurateConfig\n"
        "from curation.run import curate\n"
        "assert curate(CurateConfig(input=sys.argv[1], output=sys.argv[2])).exit_code == 0\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(source), str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 1.5 * 2**30, "kilobytes at the peak: " + done.stdout
