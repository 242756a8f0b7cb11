"""`vfm view`, `vfm doctor` and `vfm config` (wiring only)."""

import json
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch

from cli.commands import config, doctor, view
from cli.main import main
from common.errors import VfmError

SOURCES = (
    "common",
    "curation",
    "dataloading",
    "models",
    "parallel",
    "inference",
    "training",
    "cli",
)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that would have been opened, on a machine with a display."""
    addresses: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", addresses.append)
    return addresses


def page(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("<!doctype html>")
    return path.resolve()


@pytest.mark.parametrize("name", ["index.html", "report/index.html"])
def test_view_prints_and_opens_the_page(
    name: str, tmp_path: Path, opened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    expected = page(tmp_path / "a folder=x" / name)
    assert main(["view", str(tmp_path / "a folder=x")]) == 0
    assert capsys.readouterr().out == f"{expected}\n"
    assert opened == [expected.as_uri()]


def test_view_takes_the_page_itself(tmp_path: Path, opened: list[str]) -> None:
    assert view.run([str(page(tmp_path / "x.html"))]) == 0
    assert len(opened) == 1


def test_view_only_prints_when_told_or_without_a_display(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page(tmp_path / "index.html")
    assert view.run([str(tmp_path), "open=false"]) == 0
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert view.run([str(tmp_path)]) == 0
    assert opened == []


def test_view_says_where_pages_are(tmp_path: Path) -> None:
    page(tmp_path / "curated/report/index.html")
    with pytest.raises(VfmError, match=r"holds no page .* below it: .*curated/report"):
        view.run([str(tmp_path)])
    (tmp_path / "notes.txt").touch()
    with pytest.raises(VfmError, match=r"notes\.txt is neither a folder, a page"):
        view.run([str(tmp_path / "notes.txt")])
    with pytest.raises(VfmError, match="there is no folder"):
        view.run([str(tmp_path / "nothing")])


@pytest.mark.parametrize("argv", [[], [""], ["a", "b"], ["a", "open=maybe"]])
def test_view_usage(argv: list[str]) -> None:
    with pytest.raises(VfmError, match="usage: vfm view DIR"):
        view.run(argv)


@pytest.fixture(scope="module")
def findings() -> dict[str, doctor.Finding]:
    return {f.name: f for f in doctor.examine()}


def test_doctor_every_absence_has_a_cost(findings: dict[str, doctor.Finding]) -> None:
    assert [f.name for f in findings.values() if not f.value and not f.cost] == []


def test_doctor_tells_the_truth(findings: dict[str, doctor.Finding]) -> None:
    assert findings["Python"].value == platform.python_version()
    assert findings["torch"].value.startswith(torch.__version__)
    assert bool(findings["GPU"].value) == torch.cuda.is_available()
    assert int(findings["processor threads"].value) >= 1
    assert re.fullmatch(r"\d+\.\d GiB", findings["memory"].value)
    assert findings["h264"].value == "decode and encode", "PyAV's wheels bring x264"


def test_doctor_speaks_of_what_is_used() -> None:
    """That something is missing which no command would use is no news."""
    modules = {"scikit-video": "skvideo"}
    root = Path(doctor.__file__).parents[2]
    ours = [p for p in root.glob("*/**/*.py") if p.relative_to(root).parts[0] in SOURCES]
    code = "\n".join(p.read_text() for p in ours if p != Path(doctor.__file__))
    for distribution in doctor.PACKAGES:
        name = modules.get(distribution, distribution)
        assert re.search(rf'(import|from) {name}\b|find_spec\("{name}"\)', code), distribution
    for codec, (_, encoder, _) in doctor.CODECS.items():
        assert encoder is None or f'"{encoder}"' in code, codec


def test_doctor_codecs() -> None:
    assert doctor.has_codec("libx264", "w")
    assert not doctor.has_codec("libx264", "r"), "an encoder only"
    assert not doctor.has_codec("no_such_codec", "r")


def test_doctor_says_what_a_missing_codec_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "has_codec", lambda name, mode: name != "hevc")
    hevc = next(f for f in doctor.examine() if f.name == "hevc")
    assert (hevc.value, hevc.cost) == ("", doctor.CODECS["hevc"][2])


def test_doctor_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "PyAV" in capsys.readouterr().out
    assert main(["doctor", "json=true"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"area", "name", "value", "cost"} == set(rows[0])
    assert main(["doctor", "jsn=true"]) == 2


@dataclass(kw_only=True)
class Toy:
    name: str
    size: int = 3


def test_config_prints_yaml(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], configs: Path
) -> None:
    (configs / "toy.yaml").write_text("size: 4\n")
    toy = ModuleType("toy")
    toy.schema = lambda: Toy  # type: ignore
    monkeypatch.setattr(config, "command_names", lambda: ["toy"])
    monkeypatch.setattr(config, "command", lambda name: toy)
    assert config.run(["toy"]) == 0
    assert capsys.readouterr().out == "name: ???\nsize: 4\n"
    assert config.run(["toy", "name=a b", "size=5"]) == 0
    assert capsys.readouterr().out == "name: a b\nsize: 5\n"


def test_config_refuses_a_command_without_one() -> None:
    with pytest.raises(VfmError, match="'doctor' has no configuration"):
        config.run(["doctor"])
    with pytest.raises(VfmError, match="usage: vfm config COMMAND"):
        config.run([])


def test_demo_refuses_at_once_what_is_impossible_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, line in (
        (["experiment=nope"], "experiment=nope: there is no such choice"),
        (["experiment=nope", "dry_run=true"], "experiment=nope: there is no such choice"),
        (["guidance_scale=-1"], "guidance_scale must lie in 0 to 1000, got -1.0"),
        (["videos=nope"], "videos=nope: there is no such folder or file"),
        (["videos="], "videos= is empty"),
        (["output="], "output= is empty"),
    ):
        assert main(["demo", *words]) == 2
        printed = capsys.readouterr()
        assert line in printed.err
        assert printed.out == "", "nothing was begun"
    assert list(tmp_path.iterdir()) == []


def test_generate_refuses_a_name_of_a_suffix_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (".mp4", "folder/.mp4"):
        assert main(["generate", "checkpoint=run", "prompt=", f"output={name}"]) == 2
        assert f"output={name} has no name before its .mp4" in capsys.readouterr().err
