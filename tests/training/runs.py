"""Whole runs for tests."""

from pathlib import Path
from typing import Any

from rich.console import Console

from dataloading.config import LoaderConfig
from models.dit import DiTConfig
from models.text.hashed import HashedTextConfig
from models.tokenizers.causal import CausalConfig
from parallel.topology import Topology
from tests.dataloading.folder import Clip, make_folder
from training.config import (
    OptimizerConfig,
    SamplesConfig,
    TokenizerSettings,
    TrainConfig,
    ValidationConfig,
    WandbConfig,
)
from training.trainer import Trainer


def make_curated(folder: Path) -> Path:
    """A small curated folder."""
    clips = [Clip(clip_id=f"clip{i}", num_frames=24 + 4 * i, fps=12.0) for i in range(4)]
    return make_folder(folder, {"a": clips[:2], "b": clips[2:]})


def small_config(curated: Path, output: Path | str, **overrides: Any) -> TrainConfig:
    """A run small enough to train in a test."""
    values: dict[str, Any] = {
        "data": LoaderConfig(
            path=str(curated),
            token_budget=64,
            num_frames=[1, 5],
            size=[64, 48],
            fps=12.0,
        ),
        "output": str(output),
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


def make_trainer(config: TrainConfig, console: Console | None = None) -> Trainer:
    return Trainer(config, "x: 1\n", Topology(), console or Console(quiet=True))


def train(config: TrainConfig) -> Path:
    """Trains, and gives the run's folder."""
    make_trainer(config).run()
    return Path(config.output)
