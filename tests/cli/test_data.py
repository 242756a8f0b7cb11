"""`vfm data` from the outside: what it prints, and its exit codes (wiring only)."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from cli.commands.data import InfoSettings
from cli.config import CONFIGS
from cli.main import main
from tests.dataloading.folder import Clip, make_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clips = [Clip(clip_id=name, num_frames=40) for name in ("ant", "bee")]
    return make_folder(tmp_path_factory.mktemp("data"), {"a-000000": clips})


def test_info(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", str(folder)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in (
        "curated by vfm",
        "footage 3.3 s (3.3 s)",
        "shapes 64x48 (2)",
        "captions 2 of 2 clips",
        "token_budget=8192 num_frames=[1,17,33] size=[256,256] resize=area fps=24.0",
        "4x8x8 compression in patches of 1x2x2",
        "1: 2, 17: 2, 33: 2",
    ):
        assert part in said
    small = ["token_budget=48", "num_frames=[9]", "size=[32,32]", "fps=null"]
    assert main(["data", "info", str(folder), *small]) == 0
    assert "num_frames=[9] size=[32,32] resize=area fps=None" in capsys.readouterr().out
    assert main(["data", "info", str(folder), *small, "num_frames=[41]", "token_budget=999"]) == 0
    assert "none: none of the 2 clips" in capsys.readouterr().out


def test_packing_is_told_for_the_settings_of_pretrain() -> None:
    shipped = yaml.safe_load((CONFIGS / "pretrain.yaml").read_text())["data"]
    shown = dataclasses.asdict(InfoSettings())
    assert {name: shipped[name] for name in shown} == shown


def test_peek_writes_one_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "a sheet.html"
    assert main(["data", "peek", str(folder), f"output={output}", "clips=1"]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert output.read_text().count("data:image/jpeg") == 1


def test_verify_ends_with_one_where_something_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clips = [Clip(clip_id="[red]ant", num_frames=3), Clip(clip_id="bee", video=b"x")]
    folder = make_folder(tmp_path / "a=b", {"a-000000": clips[:1]})
    assert main(["data", "verify", str(folder)]) == 0
    size = (folder / "shards/a-000000.tar").stat().st_size
    assert capsys.readouterr().out == f"1 shard, 1 clip, {size:,} bytes: no defects\n"
    make_folder(folder, {"a-000000": clips})
    assert main(["data", "verify", str(folder), "num_threads=3"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a-000000.tar: bee.mp4: not_a_video: ")
    assert lines[-1].endswith(": 1 defect")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "usage: vfm data info|peek|verify|index DIR"),
        (["inf", "x"], "does not know 'inf' (did you mean 'info'"),
        (["info"], "takes one folder"),
        (["info", ""], "takes one folder"),
        (["info", "a", "b"], "takes one folder"),
        (["info", "none"], "there is no folder none"),
        (["info", "."], ". holds no shards: neither shards/manifest.json"),
        (["info", ".", "size=x"], "size=x: "),
        (["info", ".", "size=[1"], "size=[1: "),
        (["verify", ".", "num_thread=2"], "unknown key 'num_thread' (did you mean 'num_threads'?)"),
        (["verify", ".", "num_threads=0"], "num_threads=0: at least 1 is needed"),
        (["peek", ".", "clips=1.5"], "clips=1.5: a whole number is needed"),
    ],
)
def test_wrong_requests_are_one_line(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", *words]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""


def test_index_makes_any_folder_open_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataloading.samples import SampleLoader

    make_folder(tmp_path, {"a": [Clip(clip_id="ant", num_frames=2)]})
    tar = tmp_path / "shards" / "a.tar"
    plain = tmp_path / "plain" / "b.tar"
    plain.parent.mkdir()
    tar.rename(plain)
    assert main(["data", "index", str(plain.parent)]) == 0
    assert capsys.readouterr().out == "1 shard, 1 sample indexed\n"
    assert [len(batch) for batch in SampleLoader(plain.parent)] == [1]
    content = plain.read_bytes()
    plain.write_bytes(content[:700])
    assert main(["data", "index", str(plain.parent)]) == 1
    assert "cannot be read: b.tar: no readable tar after 1 files" in capsys.readouterr().out
