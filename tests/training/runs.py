"""Whole runs for tests."""

from pathlib import Path

from rich.console import Console

from parallel.topology import Topology
from training.config import TrainConfig
from training.trainer import Trainer


def make_trainer(config: TrainConfig, console: Console | None = None) -> Trainer:
    return Trainer(config, "x: 1\n", Topology(), console or Console(quiet=True))


def train(config: TrainConfig) -> Path:
    """Trains, and gives the run's folder."""
    make_trainer(config).run()
    return Path(config.output)
