"""Wiring tier: whole runs in one process; killed ones in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from cli.schema import plain
from common.errors import ConfigError, DataError
from inference.config import SamplerConfig
from inference.generate import generate
from inference.loading import load_generator
from inference.shape import VideoShape
from models.objectives.config import ObjectiveConfig
from models.objectives.loss import Objective
from parallel import checkpoint
from tests.training.runs import train
from training.config import (
    OptimizerConfig,
    PowerEMAConfig,
    SamplesConfig,
    ValidationConfig,
    WandbConfig,
)
from training.metrics import read_metrics
from training.trainer import TrainingError

ROOT = Path(__file__).resolve().parents[2]


def curve(run: Path) -> list[dict]:
    """The records of a run without what a clock says."""
    return [{k: v for k, v in r.items() if k != "tokens_per_s"} for r in read_metrics(run)]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return {
        f"{kind}.{name}": tensor
        for kind in ("ema", "model")
        for name, tensor in load_generator(run, weights=kind).network.state_dict().items()
    }


def same(a: Path, b: Path) -> None:
    assert curve(a) == curve(b)
    left, right = weights(a), weights(b)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_run_leaves_what_it_promises(make_config, tmp_path):
    run = train(make_config(samples=SamplesConfig(every=6, count=2)))
    records = read_metrics(run)
    losses = [r for r in records if "loss" in r]
    assert [r["step"] for r in losses] == [1, 2, 3, 4, 5, 6]
    assert all(r["tokens_per_s"] > 0 and 0 < r["num_tokens"] <= 64 for r in losses)
    assert [r["step"] for r in records if "val_loss" in r] == [0, 3, 6]
    assert set(records[1]["val_per_sigma"]) == {"0.3", "1"}
    assert records[0]["tokenizer_psnr_db"] > 10
    names = [p.name for p in checkpoint.found(run / "checkpoints")]
    assert names == ["step-00000004", "step-00000006"]
    newest = run / "checkpoints" / names[-1]
    assert {p.name for p in newest.iterdir()} == {
        "config.yaml", "ema.safetensors", "model.safetensors", "optimizer.safetensors",
        "state.json", "tokenizer",
    }  # fmt: skip
    made = run / "samples" / "step-00000006"
    captions = json.loads((made / "captions.json").read_text())
    assert sorted(captions) == sorted(path.name for path in made.glob("*.mp4"))
    assert len(captions) == 2
    # A checkpoint alone is enough to generate.
    moved = tmp_path / "elsewhere"
    newest.rename(moved)
    generator = load_generator(moved)
    shape = VideoShape(num_frames=5, width=64, height=48, fps=12.0)
    sampler = SamplerConfig(num_steps=3)
    first = generate(generator, ["a film"], shape, sampler, seed=1)[0]
    assert first.frames.shape == (5, 48, 64, 3) and first.frames.dtype == torch.uint8
    both = generate(generator, ["a film", "another"], shape, sampler, seed=1)
    torch.testing.assert_close(both[0].latents, first.latents, atol=1e-4, rtol=0)


def test_resume_is_bit_identical(make_config, tmp_path):
    whole = train(make_config(output=str(tmp_path / "whole")))
    parts = make_config(output=str(tmp_path / "parts"), steps=2)
    for steps in (2, 4, 5, 6):
        train(replace(parts, steps=steps))
    # Where the parts ended, a validation was made that the whole run did not make.
    extra = {2, 4, 5}
    stripped = [r for r in curve(tmp_path / "parts") if r["step"] not in extra or "loss" in r]
    assert stripped == [r for r in curve(whole) if r["step"] not in extra or "loss" in r]
    left, right = weights(whole), weights(tmp_path / "parts")
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_finished_run_is_left_alone(make_config):
    run = train(make_config())
    before = (run / "metrics.jsonl").read_bytes()
    train(make_config())
    assert (run / "metrics.jsonl").read_bytes() == before


def test_packs_per_step_is_one_larger_batch(make_config, tmp_path):
    config = make_config(packs_per_step=3, steps=2, output=str(tmp_path / "three"))
    losses = [r for r in read_metrics(train(config)) if "loss" in r]
    assert losses[0]["num_tokens"] > 64


_KILLED = """
import json, sys
from cli.main import main
sys.exit(main(json.loads(sys.argv[1])))
"""


def command_line(config, folder: Path) -> list[str]:
    """`vfm pretrain` with every setting of `config` as an override."""

    def words(values: dict, prefix: str = ""):
        for key, value in values.items():
            if isinstance(value, dict):
                yield from words(value, f"{prefix}{key}.")
            elif isinstance(value, bool):
                yield f"{prefix}{key}={str(value).lower()}"
            else:
                text = "null" if value is None else value
                yield f"{prefix}{key}={text}"

    argv = ["pretrain", *words(plain(config))]
    return [sys.executable, "-c", _KILLED, json.dumps(argv)]


def test_kill_and_continue_through_the_command_line(make_config, tmp_path):
    config = make_config(steps=10, output=str(tmp_path / "killed"))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = command_line(config, tmp_path)
    log = tmp_path / "killed" / "metrics.jsonl"
    kills = 0
    for wait_for in (1, 4, 7):
        process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, cwd=tmp_path)
        deadline = time.time() + 120
        while time.time() < deadline and process.poll() is None:
            if log.exists() and f'"step": {wait_for}, "loss"' in log.read_text():
                process.kill()
                break
            time.sleep(0.01)
        kills += process.wait() == -signal.SIGKILL
    assert kills >= 2
    subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)
    whole = command_line(replace(config, output=str(tmp_path / "whole")), tmp_path)
    subprocess.run(whole, env=env, check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)
    same(tmp_path / "whole", tmp_path / "killed")
    saved = yaml.safe_load((tmp_path / "whole" / "config.yaml").read_text())
    assert saved["steps"] == 10 and saved["model"]["hidden_size"] == 32


def test_an_interrupt_saves_first(make_config, tmp_path):
    config = make_config(steps=100_000, checkpoint_every=100_000)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    log = Path(config.output) / "metrics.jsonl"
    with subprocess.Popen(
        command_line(config, tmp_path), env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        deadline = time.time() + 120
        while time.time() < deadline and not (log.exists() and '"loss"' in log.read_text()):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert b"the same command continues" in stderr and b"Traceback" not in stderr
    (found,) = checkpoint.found(Path(config.output) / "checkpoints")
    assert checkpoint.read_state(found)["step"] == read_metrics(Path(config.output))[-1]["step"]


def test_another_computation_in_the_same_folder_is_refused(make_config):
    train(make_config(steps=2))
    wider = make_config(steps=2)
    wider.model.hidden_size = 64
    with pytest.raises(ConfigError, match=r"model.hidden_size=64 \(the run has 32\)"):
        train(wider)
    # Watching differently, or longer, is not another computation.
    train(make_config(steps=3, validation=ValidationConfig(every=1, sigmas=[0.3, 1.0])))
    other_levels = ValidationConfig(every=1, sigmas=[0.5])
    with pytest.raises(ConfigError, match=r"validation.sigmas=\[0.5\] \(the run has \[0.3, 1.0\]"):
        train(make_config(steps=3, validation=other_levels))
    fewer = ValidationConfig(every=1, sigmas=[0.3, 1.0], max_packs=1)
    with pytest.raises(ConfigError, match=r"validation.max_packs=1 \(the run has 16\)"):
        train(make_config(steps=3, validation=fewer))
    cosine = make_config(steps=3, output=make_config().output + "2")
    cosine.optimizer.schedule = "cosine"
    train(cosine)
    with pytest.raises(ConfigError, match="schedule depends on it"):
        train(replace(cosine, steps=4))


@pytest.mark.parametrize(
    "objective",
    [
        ObjectiveConfig(log_variance=True),
        ObjectiveConfig(target="flow", sigma_data=1.0, noise="mode", length_power=0.5),
        ObjectiveConfig(target="v", weight="min_snr", noise="uniform"),
    ],
)
def test_every_objective_trains_and_generates(make_config, objective):
    run = train(make_config(steps=2, objective=objective))
    generator = load_generator(run, device="cpu")
    assert hasattr(generator.network, "log_variance") == objective.log_variance
    assert generator.spec.objective == objective
    shape = VideoShape(num_frames=5, width=64, height=48, fps=12.0)
    (video,) = generate(generator, ["x"], shape, SamplerConfig(num_steps=2), seed=0)
    assert video.frames.shape == (5, 48, 64, 3)


def test_the_width_of_the_average_can_be_chosen_afterwards(make_config):
    averages = PowerEMAConfig(widths=[0.05, 0.1], every=2)
    whole = train(make_config(power_ema=averages))
    stopped = make_config(power_ema=averages, steps=4, output=make_config().output + "2")
    train(stopped)
    train(replace(stopped, steps=6))
    made = [
        load_generator(run, ema_width=0.08).network.state_dict()
        for run in (whole, Path(stopped.output))
    ]
    assert all(torch.equal(made[1][name], tensor) for name, tensor in made[0].items())
    plain_average = load_generator(whole).network.state_dict()
    assert any(not torch.equal(plain_average[name], t) for name, t in made[0].items())


def test_a_loss_that_is_not_finite_stops_with_advice(make_config, monkeypatch):
    monkeypatch.setattr(Objective, "weight", lambda self, sigma: sigma * float("nan"))
    with pytest.raises(TrainingError, match="step 1: loss nan.*lower optimizer.lr=0.001"):
        train(make_config())


def test_wandb_offline_holds_the_curve(make_config):
    pytest.importorskip("wandb")
    config = make_config(
        steps=2, wandb=WandbConfig(mode="offline"), samples=SamplesConfig(every=2, count=1)
    )
    run = train(config)
    (folder,) = (run / "wandb").glob("offline-run-*")
    (log,) = folder.glob("*.wandb")
    # W&B writes in a process of its own, which a busy machine lets wait.
    for _ in range(600):
        content = log.read_bytes()
        if b"val_per_sigma" in content and b"grad_norm" in content:
            break
        time.sleep(0.1)
    else:
        raise AssertionError(f"{log} holds no curve, but {len(content)} bytes")
    assert list(folder.glob("files/media/videos/samples/*.mp4"))


def test_a_damaged_checkpoint_is_named(make_config):
    run = train(make_config(steps=2))
    (path,) = checkpoint.found(run / "checkpoints")
    (path / "optimizer.safetensors").write_bytes(b"gone")
    with pytest.raises(DataError, match="optimizer.safetensors is damaged"):
        train(make_config(steps=4))


def test_learning_rate_schedule():
    from training.optimizer import learning_rate

    config = OptimizerConfig(lr=1.0, warmup_steps=4)
    assert [learning_rate(config, s, 100) for s in (0, 1, 3, 4, 99)] == [0.25, 0.5, 1, 1, 1]
    cosine = OptimizerConfig(lr=1.0, warmup_steps=0, schedule="cosine")
    values = [learning_rate(cosine, s, 100) for s in range(101)]
    assert values[0] == 1 and abs(values[50] - 0.5) < 1e-9 and values[100] < 1e-9
    assert values == sorted(values, reverse=True)


def test_wandb_that_cannot_start_says_how_to_go_on(make_config, monkeypatch):
    wandb = pytest.importorskip("wandb")

    def refuse(**settings):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", refuse)
    config = make_config(wandb=WandbConfig(mode="online"))
    with pytest.raises(ConfigError, match="No API key configured.*give wandb.mode=offline"):
        train(config)
    # Before any work.
    assert not (Path(config.output) / "tokenizer").exists()
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="wandb.mode=online needs the package wandb"):
        train(config)
