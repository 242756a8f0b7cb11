"""`vfm refilter` and `vfm shard` from the command line, on footage made here."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from cli.main import main
from tests.curation import footage


def curated(root: Path) -> Path:
    for seed, step_px in enumerate((0.5, 2.0, 4.0)):
        frames = footage.shot(seed, 30, size=(256, 144), step_px=step_px)
        footage.write(root / "in" / f"{seed}.mp4", frames)
    folder = root / "a folder"
    assert main(["curate", f"input={root / 'in'}", f"output={folder}", "blur.min=null"]) == 0
    return folder


def test_decide_look_and_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = curated(tmp_path)
    capsys.readouterr()
    assert main(["refilter", str(folder), "motion.min=p30", "dry_run=true"]) == 0
    out = capsys.readouterr().out
    assert "kept: 2 of 3 clips" in out and "rejected: 1 low_motion" in out
    assert "shards: 0 clips to add, 1 to leave out" in out
    assert "min: p30" in out and "min: null" in out, "the folder's own blur limit"
    assert yaml.safe_load((folder / "config.yaml").read_text())["motion"]["min"] == 0.0005

    assert main(["refilter", str(folder), "motion.min=p30"]) == 0
    out = capsys.readouterr().out
    assert "1 to leave out; `vfm shard` brings them to this one" in out
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert (saved["motion"]["min"], saved["blur"]["min"]) == ("p30", None)
    assert saved["input"] == str(tmp_path / "in")
    # A second decision starts from the first.
    assert main(["refilter", f"folder={folder}", "dark.min=null"]) == 0
    assert yaml.safe_load((folder / "config.yaml").read_text())["motion"]["min"] == "p30"
    capsys.readouterr()

    assert main(["shard", str(folder), "dry_run=true"]) == 0
    assert "3 clips, 0 to add, 1 to leave out" in capsys.readouterr().out
    assert main(["shard", str(folder)]) == 2
    assert "rewrite=true` makes them anew" in capsys.readouterr().err
    assert main(["shard", str(folder), "rewrite=true"]) == 0
    assert "leave out" not in capsys.readouterr().out
    # What was saved is a whole configuration of the same curation.
    words = [f"input={tmp_path / 'in'}", f"output={folder}", "blur.min=null", "dark.min=null"]
    assert main(["curate", *words, "motion.min=p30"]) == 0


def test_limits_saved_by_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = curated(tmp_path)
    file = tmp_path / "limits.yaml"
    file.write_text("motion:\n  min: p30\ndark:\n  min: null\n")
    assert main(["refilter", str(folder), f"limits={file}"]) == 0
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert (saved["motion"]["min"], saved["dark"]["min"]) == ("p30", None)
    assert main(["refilter", str(folder), f"limits={file}", "motion.min=0.001"]) == 0
    assert yaml.safe_load((folder / "config.yaml").read_text())["motion"]["min"] == 0.001
    capsys.readouterr()
    for text, said in (("- 1\n", "holds no settings"), ("a: [", "is no YAML"), ("blr: 1", "blr")):
        file.write_text(text)
        assert main(["refilter", str(folder), f"limits={file}"]) == 2
        assert said in capsys.readouterr().err
    assert main(["refilter", str(folder), "limits=nowhere.yaml"]) == 2
    assert "limits=nowhere.yaml: there is no such file" in capsys.readouterr().err


def test_a_yield_stays_until_something_else_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = curated(tmp_path)
    assert main(["refilter", str(folder), "target_yield=0.4"]) == 0
    capsys.readouterr()
    assert main(["refilter", str(folder), "jitter.max=0.02"]) == 2
    assert "jitter.max=0.02 has no effect" in capsys.readouterr().err
    assert main(["refilter", str(folder), "jitter.max=0.02", "target_yield=null"]) == 0
    assert main(["refilter", str(folder), "target_yield=0.4"]) == 0
    ids = pq.read_table(folder / "clips.parquet")["clip_id"].to_pylist()
    labels = tmp_path / "labels.csv"
    labels.write_text(f"clip_id,keep\n{ids[0]},1\n")
    assert main(["refilter", str(folder), f"labels={labels}"]) == 0
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert (saved["target_yield"], saved["labels"]) == (None, str(labels))
    assert main(["refilter", str(folder), "target_yield=0.7"]) == 0
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert (saved["target_yield"], saved["labels"]) == (0.7, None)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["refilter"], "the folder is missing; for example: vfm refilter curated"),
        (["shard", "rewrite=true"], "the folder is missing; for example: vfm shard curated"),
        (["refilter", "nowhere"], "there is no folder nowhere"),
        (["refilter", ""], "folder= is empty"),
        (["refilter", ".", "motion.min=p20"], "not the output of a finished `vfm curate`"),
        (["refilter", ".", "shots.max_likeness=2"], "not the output of a finished"),
    ],
)
def test_wrong_requests_are_one_line(
    words: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert line in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_wrong_limits_leave_the_folder_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = curated(tmp_path)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.suffix in (".yaml", ".parquet")}
    for word, line in (
        ("motion.min=p120", "motion.min=p120 is impossible: a number, a percentile such as p20"),
        ("motion.mim=3", "did you mean 'motion.min'"),
        ("shots.max_likeness=2", "unknown key 'shots.max_likeness'"),
        ("min_clip_s=20", "at least twice min_clip_s=20"),
    ):
        assert main(["refilter", str(folder), word]) == 2
        assert line in capsys.readouterr().err
    assert main(["refilter", str(folder), "motion.min=p50", "motion.max=1e-9"]) == 2
    assert "no clip can keep to both" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in before} == before
