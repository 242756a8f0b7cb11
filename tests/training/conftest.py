"""A small curated folder, and a run small enough to train in a test."""

from pathlib import Path
from typing import Any

import pytest

from tests.training.runs import make_curated, small_config
from training.config import TrainConfig


@pytest.fixture(scope="session")
def curated(tmp_path_factory) -> Path:
    return make_curated(tmp_path_factory.mktemp("curated"))


@pytest.fixture
def make_config(curated, tmp_path):
    def make(output: Path | str = tmp_path / "run", **overrides: Any) -> TrainConfig:
        return small_config(curated, output, **overrides)

    return make
