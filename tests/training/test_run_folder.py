"""Wiring tier: who may train in a folder, from where, and what is left in it."""

import fcntl
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import ConfigError
from parallel import checkpoint
from tests.training.runs import make_trainer, train


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_fewer_steps_than_are_trained_are_refused(make_config):
    run = train(make_config(steps=4))
    before = content(run)
    with pytest.raises(ConfigError, match=r"steps=3, but .* is trained to step 4 already"):
        make_trainer(make_config(steps=3))
    assert content(run) == before


def test_a_parent_that_is_a_file_is_refused(make_config, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"file is a file; give another folder"):
        make_trainer(make_config(output=str(tmp_path / "file" / "a" / "run")))


def test_a_curated_folder_is_refused(make_config, tmp_path):
    (tmp_path / "curated" / "shards").mkdir(parents=True)
    with pytest.raises(ConfigError, match="is a curated folder; give another for the run"):
        make_trainer(make_config(output=str(tmp_path / "curated")))


def test_one_process_at_a_time(make_config):
    config = make_config(steps=2)
    waiting = make_trainer(config)
    run = train(config)
    with pytest.raises(ConfigError, match="another process trained in .* just now"):
        waiting.run()
    with (run / ".lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        holder = json.loads(file.read())
        assert holder["host"] == socket.gethostname()
        named = rf"in use by process {holder['pid']} on {holder['host']}"
        with pytest.raises(ConfigError, match=named):
            make_trainer(config)
    make_trainer(config).run()


def test_what_killed_saves_left_is_removed(make_config):
    config = make_config(steps=2)
    run = train(config)
    for folder in (run, run / "checkpoints"):
        (folder / ".tmp-abc").mkdir()
        (folder / ".tmp-abc" / "model.safetensors").write_bytes(b"half")
        (folder / ".tmp-def.yaml").write_bytes(b"half")
    # Checking alone removes nothing.
    trainer = make_trainer(replace(config, steps=3))
    assert list(run.rglob(".tmp-*"))
    trainer.run()
    assert not list(run.rglob(".tmp-*"))
    assert [checkpoint.read_state(p)["step"] for p in checkpoint.found(run / "checkpoints")] == [
        2, 3,
    ]  # fmt: skip
