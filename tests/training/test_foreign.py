"""Wiring tier: networks of other projects, trained by our trainer from their weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

import models.wan
from cli.main import main
from common.errors import ConfigError, DataError
from inference.config import SamplerConfig
from inference.generate import generate
from inference.loading import load_generator
from inference.shape import VideoShape
from models.cosmos import CosmosConfig
from models.family import NetworkConfig, build_network
from models.initialize import initialize
from models.lora import LoRAConfig
from models.objectives.config import ObjectiveConfig
from models.weights.own import load_own
from tests.models.packs import TEXT_DIM, TOKEN_DIM, make_pack, random_weights
from tests.models.test_weights import Cosmos, Wan
from tests.training.runs import make_trainer, small_config, train
from training.setup import settings_of

SHAPE = VideoShape(num_frames=5, width=64, height=48, fps=12.0)


@pytest.fixture(params=["wan", "cosmos"])
def own(request, tmp_path) -> Path:
    """Converted weights of a small network for latents of 4 channels and text of 16 features."""
    torch.manual_seed(0)
    model: Any
    if request.param == "wan":
        model = Wan.build(in_channels=4, out_channels=4, text_dim=16)
    else:
        model = Cosmos.build(in_channels=4, out_channels=4, text_embed_dim=16)
    random_weights(model)
    model.save_pretrained(tmp_path / "theirs")
    folder = tmp_path / "own"
    assert main(["convert", f"input={tmp_path / 'theirs'}", f"output={folder}"]) == 0
    return folder


def parts(own: Path) -> tuple[NetworkConfig, ObjectiveConfig]:
    settings = settings_of(str(own))
    network: Any = load_own(own).network
    config = network.config
    assert settings["model"]["kind"] == config.kind
    return config, ObjectiveConfig(**settings["objective"])


def test_a_run_begins_with_their_weights(own, curated, tmp_path):
    model, objective = parts(own)
    config = small_config(
        curated, tmp_path / "run", model=model, objective=objective, checkpoint=str(own), steps=2
    )
    trainer = make_trainer(config)
    seen = []
    inner = trainer._step

    def spying(batches):
        if not seen:
            wanted = dict(load_own(own).network.named_parameters())
            found = dict(trainer.network.named_parameters())
            assert found.keys() == wanted.keys()
            assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        seen.append(1)
        return inner(batches)

    trainer._step = spying
    trainer.run()
    assert len(seen) == 2
    generator = load_generator(tmp_path / "run")
    (video,) = generate(generator, ["x"], SHAPE, SamplerConfig(num_steps=2), seed=0)
    assert video.frames.shape == (5, 48, 64, 3)


def test_low_rank_differences_to_their_weights(own, curated, tmp_path):
    model, objective = parts(own)
    run = train(
        small_config(
            curated,
            tmp_path / "run",
            model=model,
            objective=objective,
            checkpoint=str(own),
            lora=LoRAConfig(rank=2),
            steps=2,
        )
    )
    assert load_generator(run).step == 2


def test_wan_is_told_the_time_as_it_was_trained():
    config = load_wan()
    network = build_network(config, token_dim=TOKEN_DIM, text_dim=TEXT_DIM)
    random_weights(network)
    x, _, text, layout = make_pack(dtype=torch.float32)
    plain = models.wan.Wan(config)
    plain.load_state_dict(network.state_dict())
    time = torch.tensor([0.25, 0.5, 1.0])
    wanted = plain(x, time * 1000, text, layout)
    torch.testing.assert_close(network(x, time, text, layout), wanted)


def load_wan() -> models.wan.WanConfig:
    return models.wan.WanConfig(
        hidden_size=48, num_layers=2, num_heads=4, ffn_size=40, channels=3, text_dim=TEXT_DIM
    )


def test_a_new_one_starts_with_finite_weights():
    for config in (
        load_wan(),
        CosmosConfig(hidden_size=48, num_layers=1, num_heads=4, text_dim=16),
    ):
        dim = TOKEN_DIM if config.kind == "wan" else 64
        network = build_network(config, token_dim=dim, text_dim=TEXT_DIM)
        initialize(network, 0)
        assert all(p.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ((16, 16), "takes and gives latents of 3 channels, this tokenizer has 4"),
        ((12, 20), "model.text_dim=16, but this text encoder gives 20 features"),
    ],
)
def test_other_latents_or_text_are_refused(dims, message):
    with pytest.raises(ConfigError, match=message):
        build_network(load_wan(), token_dim=dims[0], text_dim=dims[1])


def test_other_weights_are_listed(own, curated, tmp_path):
    model, objective = parts(own)
    model.num_layers += 1
    config = small_config(
        curated, tmp_path / "run", model=model, objective=objective, checkpoint=str(own)
    )
    with pytest.raises(DataError, match=r"own does not fit this model:\n  missing: blocks\.2\."):
        train(config)
