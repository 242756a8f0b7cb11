"""Wiring tier: actions from the shards to a trained model, and from a file to a video."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import ConfigError
from dataloading.config import Compression, LoaderConfig
from dataloading.loader import PackedLoader
from inference.actions import read_actions
from inference.config import GenerateConfig, SamplerConfig
from inference.generate import generate
from inference.loading import load_generator
from inference.shape import VideoShape
from models.dit import DiTConfig
from tests.dataloading.folder import Clip, make_folder
from tests.training.runs import make_trainer, small_config

NETWORK = DiTConfig(hidden_size=32, num_layers=1, num_heads=2, action_dim=2)
SHAPE = VideoShape(num_frames=5, width=64, height=48, fps=12.0)


def clip(name: str, actions: object = None, num_frames: int = 24) -> Clip:
    about = {"caption": f"a film of {name}"}
    about |= {} if actions is None else {"actions": actions}
    meta = json.dumps(about).encode()
    return Clip(clip_id=name, num_frames=num_frames, fps=24.0, meta=meta)


@pytest.fixture(scope="module")
def acted(tmp_path_factory) -> Path:
    each = [[float(i), -float(i)] for i in range(24)]
    clips = [clip("each", each), clip("whole", [[0.5, 2]]), clip("none")]
    return make_folder(tmp_path_factory.mktemp("acted"), {"a": clips})


def loader_config(folder: Path, **changes) -> LoaderConfig:
    values = {"token_budget": 64, "num_frames": [5], "size": [64, 48], "fps": 12.0}
    return LoaderConfig(path=str(folder), **{**values, "action_dim": 2, **changes})


def test_each_window_has_the_actions_of_its_frames(acted):
    seen = {}
    with PackedLoader(loader_config(acted), Compression(), split="all") as loader:
        for batch in loader:
            assert batch.actions is not None and batch.start_s is not None
            rows = zip(batch.sample_ids, batch.actions, batch.start_s, strict=True)
            for sample_id, actions, start_s in rows:
                seen.setdefault(sample_id.split(":")[0], []).append((actions, float(start_s)))
            if all(len(seen.get(name, [])) > 2 for name in ("each", "whole", "none")):
                break
    for actions, start_s in seen["each"]:
        # Every second frame of the clip's 24 per second.
        first = round(start_s * 24)
        wanted = torch.arange(first, first + 10, 2).float()
        assert torch.equal(actions, torch.stack([wanted, -wanted], dim=1))
    assert all(torch.equal(a, torch.tensor([[0.5, 2.0]] * 5)) for a, _ in seen["whole"])
    assert all(actions is None for actions, _ in seen["none"])


def test_actions_are_read_only_where_they_are_asked_for(acted):
    with PackedLoader(loader_config(acted, action_dim=0), Compression(), split="all") as loader:
        assert next(iter(loader)).actions is None


@pytest.mark.parametrize("bad", [[[1.0]], [[1.0, 2.0]] * 7, "jump", [[1.0, True]], []])
def test_a_clip_whose_actions_are_no_actions_is_left_out(tmp_path, bad):
    folder = make_folder(tmp_path, {"a": [clip("good", [[1, 2]]), clip("bad", bad)]})
    with PackedLoader(loader_config(folder), Compression(), split="all") as loader:
        batches = iter(loader)
        ids = {i.split(":")[0] for _ in range(4) for i in next(batches).sample_ids}
        skipped = loader.state_dict()["skipped"]
    assert ids == {"good"} and list(skipped) == ["bad"] and "bad_actions" in str(skipped)


def test_a_run_is_told_actions_and_a_video_follows_them(acted, tmp_path):
    data = loader_config(acted, action_dim=0, num_frames=[1, 5])
    config = small_config(acted, tmp_path / "run", data=data, model=NETWORK, action_dropout=0.5)
    assert config.data.action_dim == 2
    trainer = make_trainer(replace(config, steps=3))
    told = []
    inner = trainer._prepare

    def spying(batch, prefix):
        prepared = inner(batch, prefix)
        told.append((batch, prepared.layout.actions))
        return prepared

    trainer._prepare = spying
    trainer.run()
    assert len(told) == 3 and any(actions is not None for _, actions in told)
    for batch, actions in told:
        assert batch.actions is not None
        for i, given in enumerate(actions.given if actions else ()):
            assert not given or batch.actions[i] is not None
    generator = load_generator(tmp_path / "run")
    network: Any = generator.network
    with torch.no_grad():
        network.actions.leave.weight.normal_()
    sampler = SamplerConfig(num_steps=2)
    left, right = torch.zeros(5, 2), torch.ones(5, 2)
    made = [
        generate(generator, ["x"], SHAPE, sampler, seed=0, actions=actions)[0].latents
        for actions in (left, right, None, left)
    ]
    assert torch.equal(made[0], made[3])
    assert not torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])

    def read(content: object) -> Any:
        (tmp_path / "a.json").write_text(json.dumps(content))
        config = GenerateConfig(
            checkpoint="run", prompt="x", output="x.mp4", actions=str(tmp_path / "a.json")
        )
        return read_actions(config, generator, SHAPE)

    assert torch.equal(read([1, 1]), right) and torch.equal(read([[1, 1]] * 5), right)
    for content, message in [
        ([[1, 1]] * 4, r"numbers of shape \(4, 2\); needed are \[2\] for all frames, or \[5, 2\]"),
        ([[1, 1, 1]] * 5, r"\(5, 3\)"),
        ({"a": 1}, "holds no list of lists of numbers"),
        ([[1, float("nan")]], "not finite"),
    ]:
        with pytest.raises(ConfigError, match=message):
            read(content)


def test_what_the_data_reads_is_what_the_network_is_told(acted, tmp_path):
    data = loader_config(acted, action_dim=3)
    with pytest.raises(ConfigError, match="data.action_dim=3 is read, and model.action_dim=2"):
        small_config(acted, tmp_path / "run", data=data, model=NETWORK)
