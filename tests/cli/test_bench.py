"""`vfm bench`: finding a benchmark, its settings, and the record it leaves (wiring only)."""

import json
from pathlib import Path

import pytest

from benchmarks.row import Row, table
from cli.commands import bench
from cli.main import main
from cli.schema import defaults

LENGTHS = {"small": {"budget": 10, "lengths": [5, 5, 6, 4, 10]}}


@pytest.fixture
def lengths(tmp_path: Path) -> str:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps(LENGTHS))
    return f"lengths={path}"


@pytest.mark.parametrize("name", bench._names())
def test_every_benchmark_keeps_the_contract(name: str) -> None:
    module = bench.benchmark(name)
    assert module.HELP.strip().splitlines()[0]
    assert f"vfm bench {name}" in module.HELP
    assert "???" not in str(defaults(module.Settings)), "every setting has a default"
    assert callable(module.measure)


def test_the_list_names_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in bench._names())


def test_the_record_holds_rows_machine_and_versions(
    lengths: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.json"
    assert main(["bench", "packing", lengths, f"json={target}"]) == 0
    record = json.loads(target.read_text())
    assert set(record["rows"][0]) == {"benchmark", "case", "subject", "metric", "value", "unit"}
    assert record["machine"]["versions"]["torch"]
    full = [r for r in record["rows"] if r["metric"] == "fill" and r["subject"].startswith("vfm")]
    assert {r["value"] for r in full} == {1.0}, "30 tokens fit 3 packs of 10"
    assert "small" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["packin"], "did you mean 'packing'"),
        (["row"], "there is no benchmark 'row'"),
        (["packing", "lenghts=x"], "did you mean 'lengths'"),
        (["packing", "lengths=/no/such/file"], "lengths=/no/such/file cannot be read"),
        (["packing", "json=/no/such/folder/x.json"], "a file in a folder that exists is needed"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    assert told in capsys.readouterr().err


def test_help_shows_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "packing", "--help"]) == 0
    assert "lengths: null" in capsys.readouterr().out
    assert main(["bench", "--help"]) == 0
    assert "packing " in capsys.readouterr().out


def row(subject: str, metric: str, value: float | None, unit: str) -> Row:
    return Row(benchmark="b", case="c", subject=subject, metric=metric, value=value, unit=unit)


def test_a_subject_that_could_not_run_stands_in_the_table() -> None:
    rows = [row("ours", "rate", 2.0, "1/s"), row("theirs", "rate", None, "not installed")]
    assert table(rows).splitlines() == [
        "case  subject  rate [1/s]",
        "c     ours              2",
        "c     theirs               rate: not installed",
    ]


def test_a_run_too_short_for_all_pools_to_be_seen_is_measured() -> None:
    from benchmarks import engine

    rows = list(engine.measure(engine.Settings(videos=4, scale=0.05, subjects=["simulation"])))
    assert {"wall", "results"} <= {r.metric for r in rows if r.subject == "simulation"}


def test_a_video_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "curate", "video=none.mp4"]) == 2
    assert "error: video=none.mp4: there is no such file" in capsys.readouterr().err
