"""Wiring tier: who may train in a folder, from where, and what is left in it."""

import fcntl
import json
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import ConfigError, DataError
from inference.loading import load_generator
from parallel import checkpoint
from tests.training.runs import make_trainer, train
from training.config import PowerEMAConfig


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


def test_other_data_settings_are_taken_where_that_is_asked_for(make_config):
    train(make_config(steps=2))
    data = replace(make_config().data, num_frames=[5])
    with pytest.raises(ConfigError, match=r"data.num_frames=\[5\] \(the run has \[1, 5\]\)"):
        make_trainer(make_config(steps=4, data=data))
    run = train(make_config(steps=4, data=replace(data, accept_changes=True)))
    assert checkpoint.found(run / "checkpoints")[-1].name == "step-00000004"


def test_a_checkpoint_of_another_layout_is_refused_in_one_line(make_config):
    run = train(make_config(steps=2))
    (path,) = checkpoint.found(run / "checkpoints")
    state = json.loads((path / "state.json").read_text())
    del state["spec"]["model"]["kind"]
    (path / "state.json").write_text(json.dumps({**state, "format_version": 1}))
    said = "has checkpoint format 1, this vfm reads 2; use the vfm that wrote it, or train in"
    with pytest.raises(DataError, match=said):
        make_trainer(make_config(steps=4))
    with pytest.raises(DataError, match=said):
        load_generator(run)


def test_averages_of_a_run_that_was_killed_before_a_checkpoint_are_forgotten(make_config):
    """It may have had other settings: another seed's weights must not be averaged in."""
    config = make_config(steps=4, power_ema=PowerEMAConfig(widths=[0.1], every=2))
    stale = Path(config.output) / "ema_snapshots" / "step-00000003"
    stale.mkdir(parents=True)
    (stale / "0.1.safetensors").write_bytes(b"")
    run = train(config)
    assert sorted(p.name for p in stale.parent.iterdir()) == ["step-00000002", "step-00000004"]
    shutil.copytree(stale.parent / "step-00000002", stale.parent / "step-00000006")
    train(replace(config, steps=5))
    assert [p.name for p in sorted(stale.parent.iterdir())][-1] == "step-00000005"
    load_generator(run, ema_width=0.1)
