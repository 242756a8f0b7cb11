"""A folder of configurations of our own, so that the tests do not depend on the shipped ones."""

from pathlib import Path

import pytest


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`train.yaml` with the groups `model` (small, large) and `experiment` (quick), in use."""
    folder = tmp_path / "configs with spaces"
    files = {
        "train.yaml": (
            "defaults: [{model: small}, {experiment: null}, _self_]\nname: run-${model.dim}\n"
        ),
        "model/small.yaml": "dim: 8\nheads: 2\n",
        "model/large.yaml": "dim: 64\nheads: 4\n",
        "experiment/quick.yaml": (
            "# @package _global_\ndefaults: [{override /model: large}]\nsteps: 3\n"
        ),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr("cli.config.CONFIGS", folder)
    return folder
