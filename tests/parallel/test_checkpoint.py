"""Wiring tier: checkpoint folders are whole or absent, and say what is wrong with them."""

from pathlib import Path

import pytest
import torch

from common.errors import DataError
from parallel import checkpoint
from parallel.store import SafetensorsStore


def fill(folder: Path) -> None:
    folder.mkdir()
    (folder / "x").write_text("y")


def make(step: int) -> checkpoint.Checkpoint:
    return checkpoint.Checkpoint(
        step=step,
        tensors={"model": {"a": torch.full((2, 3), float(step)), "b": torch.zeros(())}},
        state={"loader": {"cursor": 5}},
        config_yaml="steps: 3\n",
        folders={"tokenizer": fill},
    )


def test_there_and_back(tmp_path):
    path = checkpoint.save(tmp_path / "checkpoints", make(7))
    assert path.name == "step-00000007"
    state = checkpoint.read_state(path)
    assert state["step"] == 7 and state["loader"] == {"cursor": 5}
    expected = {"a": torch.zeros(2, 3), "b": torch.zeros(())}
    tensors = checkpoint.read_tensors(path, "model", expected)
    assert torch.equal(tensors["a"], torch.full((2, 3), 7.0))
    assert (path / "tokenizer" / "x").read_text() == "y"
    assert (path / "config.yaml").read_text() == "steps: 3\n"
    for given in (tmp_path, tmp_path / "checkpoints", path):
        assert checkpoint.resolve(given) == path


def test_the_newest_count(tmp_path):
    for step in (1, 20, 3):
        checkpoint.save(tmp_path, make(step))
    (tmp_path / ".tmp-half").mkdir()
    assert [p.name for p in checkpoint.found(tmp_path)] == [
        "step-00000001", "step-00000003", "step-00000020",
    ]  # fmt: skip
    checkpoint.keep_last(tmp_path, 2)
    assert [checkpoint.read_state(p)["step"] for p in checkpoint.found(tmp_path)] == [3, 20]


def test_a_removal_that_is_killed_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    for step in (1, 2):
        checkpoint.save(tmp_path, make(step))

    def killed(path):
        (path / "state.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.keep_last(tmp_path, 1)
    assert [checkpoint.read_state(p)["step"] for p in checkpoint.found(tmp_path)] == [2]


def test_a_save_that_fails_leaves_the_last_good_one(tmp_path):
    checkpoint.save(tmp_path, make(1))

    class Failing(SafetensorsStore):
        def save(self, folder, group, tensors):
            super().save(folder, group, tensors)
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(tmp_path, make(1), Failing())
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(tmp_path, make(2), Failing())
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
    assert checkpoint.read_state(tmp_path / "step-00000001")["step"] == 1


def test_what_does_not_fit_is_listed(tmp_path):
    path = checkpoint.save(tmp_path, make(1))
    with pytest.raises(DataError) as caught:
        checkpoint.read_tensors(path, "model", {"a": torch.zeros(4), "c": torch.zeros(1)})
    message = str(caught.value)
    assert "missing: c" in message and "unknown: b" in message
    assert "a: (2, 3) stored, (4,) in the model" in message


def test_damage_is_named(tmp_path):
    path = checkpoint.save(tmp_path, make(1))
    with pytest.raises(DataError, match="has no ema.safetensors"):
        checkpoint.read_tensors(path, "ema", {})
    (path / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(DataError, match="model.safetensors is damaged"):
        checkpoint.read_tensors(path, "model", {})
    (path / "state.json").write_text("{")
    with pytest.raises(DataError, match="state.json is damaged"):
        checkpoint.read_state(path)
    with pytest.raises(DataError, match="does not exist: give a run folder"):
        checkpoint.resolve(tmp_path / "nowhere")
    with pytest.raises(DataError, match="holds no checkpoint"):
        checkpoint.resolve(tmp_path / "step-00000001" / "tokenizer")
