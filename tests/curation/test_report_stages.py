"""The stages of a run as its report tells of them. Files only; tier: wiring (no process group)."""

import itertools
import json
from pathlib import Path

from curation.report_stages import MOST_SAMPLES, Series, charts, read_series, stage_section


def sample(at_s: float, *, busy: int, gpus: float | None = None) -> dict[str, object]:
    steps = {"scene": {"busy": busy, "queue": 2 * busy}}
    return {"at_s": at_s, "left_s": None, "gpus_busy": gpus, "steps": steps}


def write(path: Path, lines: list[dict[str, object]], rest: str = "") -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + rest)
    return path


def test_a_run_without_an_engine_has_no_charts(tmp_path: Path) -> None:
    series = read_series(tmp_path / "engine.jsonl")
    assert charts(series) is None
    assert stage_section({}, series) == ""
    stages = {"scene": {"items": 1200, "workers": 2, "tasks_per_s": 1.5, "wall_s": 800.0}}
    section = stage_section({"stages": stages}, series)
    assert ">1,200<" in section
    assert ">3<" in section, "two workers at 1.5 a second"
    assert "chart" not in section


def test_samples_and_decisions_are_told_apart_and_a_torn_line_is_passed_over(
    tmp_path: Path,
) -> None:
    decision = {"at_s": 1.0, "decision": "<b>: 0 -> 1 workers", "reason": "first worker"}
    lines = [sample(0.0, busy=1), decision, sample(1.0, busy=2, gpus=0.5)]
    series = read_series(write(tmp_path / "engine.jsonl", lines, rest='{"at_s": 2.0, "ste'))
    assert charts(series) == {
        "workers": [{"name": "scene", "points": [[0.0, 1], [1.0, 2]]}],
        "queues": [{"name": "scene", "points": [[0.0, 2], [1.0, 4]]}],
        "gpus": [{"name": "GPUs at work", "points": [[1.0, 0.5]]}],
    }
    section = stage_section({}, series)
    assert "1 in all" in section
    assert "<b>" not in section


def test_a_long_run_is_thinned_out_evenly(tmp_path: Path) -> None:
    lines = [sample(float(second), busy=1) for second in range(10_000)]
    series: Series = read_series(write(tmp_path / "engine.jsonl", lines))
    times = [line["at_s"] for line in series.samples]
    assert MOST_SAMPLES <= len(times) < 2 * MOST_SAMPLES
    gaps = {later - at for at, later in itertools.pairwise(times)}
    assert len(gaps) == 1
    assert times[0] == 0.0
    assert times[-1] > 9_900
