"""A small curated folder, and a run small enough to train in a test."""

from pathlib import Path

import pytest

from dataloading.config import LoaderConfig
from models.dit import DiTConfig
from models.text.hashed import HashedTextConfig
from models.tokenizers.causal import CausalConfig
from tests.dataloading.folder import Clip, make_folder
from training.config import (
    OptimizerConfig,
    SamplesConfig,
    TokenizerSettings,
    TrainConfig,
    ValidationConfig,
    WandbConfig,
)


@pytest.fixture(scope="session")
def curated(tmp_path_factory) -> Path:
    clips = [Clip(clip_id=f"clip{i}", num_frames=24 + 4 * i, fps=12.0) for i in range(4)]
    return make_folder(tmp_path_factory.mktemp("curated"), {"a": clips[:2], "b": clips[2:]})


@pytest.fixture
def make_config(curated, tmp_path):
    def make(**overrides) -> TrainConfig:
        values = {
            "data": LoaderConfig(
                path=str(curated),
                token_budget=64,
                num_frames=[1, 5],
                size=[64, 48],
                fps=12.0,
            ),
            "output": str(tmp_path / "run"),
            "steps": 6,
            "checkpoint_every": 2,
            "model": DiTConfig(hidden_size=32, num_layers=1, num_heads=2),
            "text": HashedTextConfig(dim=16),
            "tokenizer": TokenizerSettings(
                fit=CausalConfig(channels=4, widths=[8], decoder_blocks=1),
                fit_videos=8,
                fit_steps=2,
            ),
            "optimizer": OptimizerConfig(lr=1e-3, warmup_steps=2),
            "validation": ValidationConfig(every=3, sigmas=[0.3, 1.0]),
            "samples": SamplesConfig(),
            "wandb": WandbConfig(mode="disabled"),
        }
        return TrainConfig(**{**values, **overrides})

    return make
