"""`vfm demo` from footage to page, with a model of a few steps. One process, no network, no GPU."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli.config
from cli.demo.config import DemoConfig
from cli.demo.footage import sample_captions, sample_footage
from cli.main import main
from common.errors import ConfigError
from tests.curation import footage

QUICK = """# @package _global_
defaults:
  - override /model: dit_tiny
  - _self_
steps: 2
checkpoint_every: 2
model: {hidden_size: 48, num_layers: 1, num_heads: 2}
tokenizer: {fit_steps: 2, fit_videos: 4, fit: {widths: [8], decoder_blocks: 1}}
data: {token_budget: 64, num_frames: [1, 5], size: [64, 48], resize: crop, fps: 20}
validation: {every: 1}
wandb: {mode: disabled}
"""


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped settings, an experiment of two steps, and a folder to work in."""
    shutil.copytree(cli.config.CONFIGS, tmp_path / "configs")
    (tmp_path / "configs/experiment/quick.yaml").write_text(QUICK)
    # The blobs of the test footage are soft by design.
    (tmp_path / "configs/curate.yaml").write_text(
        (cli.config.CONFIGS / "curate.yaml").read_text() + "blur: {min: null}\n"
    )
    monkeypatch.setattr("cli.config.CONFIGS", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _videos(folder: Path, captions: dict[str, str | None]) -> None:
    for seed, (name, caption) in enumerate(captions.items()):
        footage.write(folder / f"{name}.mp4", footage.shot(seed, 60))
        if caption is not None:
            (folder / f"{name}.txt").write_text(caption)


WORDS = ["demo", "videos=in", "output=out", "experiment=quick"]


def test_own_footage(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _videos(quick / "in", {"a": "Blobs <one>.", "b": "Other blobs.", "c": None})
    (quick / "in/broken.mp4").write_bytes(b"no video at all")
    assert main(WORDS) == 1, "one file could not be used"
    printed = capsys.readouterr().out
    assert "failed: broken.mp4 (not_a_video): " in printed
    assert printed.rstrip().endswith(str(quick / "out/index.html"))
    page = (quick / "out/index.html").read_text()
    assert "Blobs &lt;one&gt;." in page
    assert "Other blobs." in page
    assert "This tokenizer" in page and "3D DCT, 16 coefficients a block" in page
    assert len(list((quick / "out/generated").glob("*-generated.mp4"))) == 2
    metrics = (quick / "out/run/metrics.jsonl").read_bytes()

    assert main(WORDS) == 1
    assert (quick / "out/run/metrics.jsonl").read_bytes() == metrics, "what is done is kept"
    page = (quick / "out/index.html").read_text()

    _videos(quick / "other", {"d": "Others."})
    capsys.readouterr()
    assert main(["demo", "videos=other", *WORDS[2:]]) == 2
    assert "out holds the demo of " in capsys.readouterr().err
    footage.write(quick / "in/e.mp4", footage.shot(9, 60))
    assert main(WORDS) == 2
    assert "has changed since its model began to train" in capsys.readouterr().err
    assert (quick / "out/index.html").read_text() == page, "what was there still stands"


def test_footage_without_captions(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _videos(quick / "in", {"a": None, "b": None})
    assert main(WORDS) == 0
    assert "fewer than two captions" in capsys.readouterr().out
    page = (quick / "out/index.html").read_text()
    assert "Whether the model learned its captions was not measured." in page


def test_nothing_is_kept(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    footage.write(quick / "in/still.mp4", np.repeat(footage.shot(0, 1), 60, axis=0))
    assert main(WORDS) == 3
    assert "kept no clip" in capsys.readouterr().err


def test_sample_footage_and_its_captions_fit() -> None:
    import json

    names = {path.name for path in sample_footage().glob("*.mp4")}
    assert set(json.loads(sample_captions().read_text())) == names


def test_each_footage_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert DemoConfig().folder == "demo_out"
    assert DemoConfig(videos=str(tmp_path / "holiday")).folder == "demo_out_holiday"
    assert DemoConfig(videos="x", output="here").folder == "here"


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"max_captions": 1}])
def test_impossible_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        DemoConfig(**wrong)
