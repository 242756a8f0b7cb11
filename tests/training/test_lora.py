"""Wiring tier: runs that go on from trained weights, whole or by small differences alone."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from common.errors import ConfigError, DataError
from inference.config import SamplerConfig
from inference.generate import generate
from inference.loading import load_generator
from inference.shape import VideoShape
from models.dit import DiTConfig
from models.lora import LoRAConfig, merge_lora
from parallel import checkpoint
from tests.training.runs import small_config, train
from training.config import TokenizerSettings
from training.metrics import read_metrics
from training.prefix import PrefixConfig

SHAPE = VideoShape(num_frames=5, width=64, height=48, fps=12.0)
LORA = LoRAConfig(rank=2, alpha=4.0, targets=["blocks.*_attention.[qv]", "blocks.*.mlp.*"])


@pytest.fixture(scope="module")
def start(curated, tmp_path_factory) -> Path:
    """A trained run; its averaged weights are far from where a new run would begin."""
    return train(small_config(curated, tmp_path_factory.mktemp("start") / "run", steps=3))


def tuned(curated, start: Path, output: Path, **overrides) -> Path:
    tokenizer = TokenizerSettings(path=str(checkpoint.resolve(start) / "tokenizer"))
    values = {"checkpoint": str(start), "tokenizer": tokenizer, "steps": 4, **overrides}
    return train(small_config(curated, output, **values))


def weights(run: Path, group: str = "ema") -> dict[str, torch.Tensor]:
    return load_file(checkpoint.resolve(run) / f"{group}.safetensors")


def test_a_run_begins_with_the_averaged_weights(curated, start, tmp_path, monkeypatch):
    seen = {}
    from training import trainer as module

    inner = module.start_from

    def spying(network, path):
        inner(network, path)
        seen.update({n: p.detach().clone() for n, p in network.named_parameters()})

    monkeypatch.setattr(module, "start_from", spying)
    run = tuned(curated, start, tmp_path / "run", steps=2)
    before = weights(start)
    assert seen.keys() == before.keys()
    assert all(torch.equal(seen[name], before[name]) for name in before)
    # A run that goes on has weights of its own.
    seen.clear()
    tuned(curated, start, tmp_path / "run", steps=3)
    assert not seen and checkpoint.read_state(checkpoint.resolve(run))["step"] == 3


def test_differences_alone_are_learned_saved_merged_and_resumed(curated, start, tmp_path):
    whole = tuned(curated, start, tmp_path / "whole", lora=LORA)
    for steps in (2, 4):
        tuned(curated, start, tmp_path / "parts", lora=LORA, steps=steps)
    losses = [
        [r["loss"] for r in read_metrics(run) if "loss" in r] for run in (whole, tmp_path / "parts")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 4

    before, after = weights(start), weights(whole, "model")
    plain = {
        n.replace(".base.", "."): t for n, t in after.items() if not n.endswith((".up", ".down"))
    }
    assert plain.keys() == before.keys()
    assert all(torch.equal(plain[name], before[name]) for name in before)
    ups = [t for n, t in after.items() if n.endswith(".up")]
    assert len(ups) == 6 and all(t.any() for t in ups)
    learned = {n.rsplit(".", 2)[0] for n in weights(whole, "optimizer")}
    assert all(".attention" not in n for n in learned) and len(weights(whole, "optimizer")) == 36

    # What generates is the plain network with the differences merged, ...
    generator = load_generator(whole)
    sampler = SamplerConfig(num_steps=2)
    (video,) = generate(generator, ["a film"], SHAPE, sampler, seed=1)
    # ... which is the start with the checkpoint's adapter, as peft has it.
    adapter = checkpoint.resolve(whole) / "adapter"
    told = json.loads((adapter / "adapter_config.json").read_text())
    assert (told["r"], told["lora_alpha"], told["peft_type"]) == (2, 4.0, "LORA")
    again = load_generator(start, adapter=adapter)
    for name, parameter in again.network.named_parameters():
        torch.testing.assert_close(
            parameter, generator.network.get_parameter(name), atol=1e-6, rtol=1e-5
        )
    (same,) = generate(again, ["a film"], SHAPE, sampler, seed=1)
    torch.testing.assert_close(same.latents, video.latents, atol=1e-3, rtol=1e-3)
    (other,) = generate(load_generator(start), ["a film"], SHAPE, sampler, seed=1)
    assert not torch.equal(other.latents, video.latents)

    # And another run can go on from the merged weights.
    further = tuned(curated, whole, tmp_path / "further", steps=2, lora=None)
    assert weights(further).keys() == before.keys()


def test_merged_tensors_are_what_merging_the_network_gives():
    from models.lora import add_lora, merged
    from tests.models.packs import random_weights

    network = torch.nn.ModuleDict(
        {"a": torch.nn.Linear(4, 6), "b": torch.nn.Linear(6, 3, bias=False)}
    )
    config = LoRAConfig(rank=2, alpha=3.0, targets=["a"])
    add_lora(network, config)
    random_weights(network)
    found = merged(dict(network.named_parameters()), config)
    merge_lora(network)
    wanted = dict(network.named_parameters())
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name]) for name in wanted)


def test_a_network_learns_what_its_start_was_never_told(curated, start, tmp_path):
    model = DiTConfig(hidden_size=32, num_layers=1, num_heads=2, prefix=True)
    prefix = PrefixConfig(shares=[1, 1])
    run = tuned(curated, start, tmp_path / "run", model=model, prefix=prefix)
    assert set(weights(run)) - set(weights(start)) == {"prefix.mask.weight"}
    assert load_generator(run).spec.prefix_lens == [0, 1]


def test_what_does_not_fit_is_listed(curated, start, tmp_path):
    model = DiTConfig(hidden_size=32, num_layers=2, num_heads=2)
    message = r"\(ema\) does not fit this model:\n  missing: blocks.1"
    with pytest.raises(DataError, match=message):
        tuned(curated, start, tmp_path / "run", model=model)
    with pytest.raises(ConfigError, match="lora.targets: attention.q names no linear"):
        tuned(curated, start, tmp_path / "none", lora=LoRAConfig(targets=["attention.q"]))
    assert not (tmp_path / "none").exists()
    with pytest.raises(ConfigError, match="lora.rank=16 adapts weights that are there"):
        small_config(curated, tmp_path / "run", lora=LoRAConfig())
    with pytest.raises(DataError, match="nowhere"):
        tuned(curated, start, tmp_path / "run2", checkpoint=str(tmp_path / "nowhere"))
