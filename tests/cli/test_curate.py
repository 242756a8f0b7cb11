"""`vfm curate` around the curation itself: what is checked, said and saved (wiring only)."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from cli.main import main
from curation.config import CurateConfig


@dataclass
class Result:
    exit_code: int


@pytest.fixture
def curated(monkeypatch: pytest.MonkeyPatch) -> list[CurateConfig]:
    """The configurations that the curation was asked for; it ends with "some failed"."""
    calls: list[CurateConfig] = []

    def curate(
        config: CurateConfig, *, console: object = None, on_start: Callable[[], None]
    ) -> Result:
        on_start()
        calls.append(config)
        return Result(exit_code=1)

    module = ModuleType("curation.run")
    module.curate = curate  # type: ignore
    monkeypatch.setitem(sys.modules, "curation.run", module)
    return calls


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    folder = tmp_path / "my videos, 2024"
    folder.mkdir()
    (folder / "a.mp4").write_bytes(b"x" * 2**20)
    (folder / "a.txt").write_text("a caption")
    return folder


def test_the_curation_gets_its_configuration_and_gives_its_exit_code(
    curated: list[CurateConfig], videos: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    assert main(["curate", f"input={videos}", f"output={output}", "blur.min=null"]) == 1
    (config,) = curated
    assert (config.input, config.output, config.blur.min) == (str(videos), str(output), None)
    saved = yaml.safe_load((output / "config.yaml").read_text())
    assert (saved["input"], saved["blur"], saved["motion"]["min"]) == (
        str(videos),
        {"min": None, "max": None},
        config.motion.min,
    )


def test_dry_run_counts_and_touches_nothing(
    curated: list[CurateConfig],
    videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "out"
    assert main(["curate", f"input={videos}", f"output={output}", "dry_run=true"]) == 0
    out = capsys.readouterr().out
    assert "1 files to read, 1.0 MiB; 1 passed over" in out
    assert "which is new" in out
    assert curated == []
    assert not output.exists()


def test_a_mistyped_input_leaves_no_output(
    curated: list[CurateConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["curate", f"input={tmp_path / 'x'}", f"output={tmp_path / 'out'}"]) == 2
    assert "there is no such folder or file" in capsys.readouterr().err
    assert curated == []
    assert not (tmp_path / "out").exists()


def test_an_input_without_videos_leaves_no_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    assert main(["curate", f"input={tmp_path / 'in'}", f"output={tmp_path / 'out/x'}"]) == 2
    assert "holds no video" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
