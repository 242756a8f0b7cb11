"""Shared by the loader's tests: one small folder and a few videos, written once."""

from pathlib import Path

import pytest
import torch

from tests.dataloading.films import FILES, write
from tests.dataloading.folder import Clip, make_folder
from tests.dataloading.packs import loader, take


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine clips of several lengths, rates and shapes in three shards of two buckets."""
    return make_folder(
        tmp_path_factory.mktemp("small"),
        {
            "wide/a-000000": [
                Clip(clip_id="ant", num_frames=30),
                Clip(clip_id="bee", num_frames=41, fps=30.0),
                Clip(clip_id="cat", num_frames=12),
                Clip(clip_id="dog", num_frames=25, fps=30000 / 1001),
            ],
            "wide/a-000001": [
                Clip(clip_id="eel", num_frames=50, fps=25.0),
                Clip(clip_id="fox", num_frames=1),
                Clip(clip_id="gnu", num_frames=19),
            ],
            "tall/b-000000": [
                Clip(clip_id="hen", num_frames=33, width=48, height=80),
                Clip(clip_id="jay", num_frames=28, width=48, height=80, fps=60.0),
            ],
        },
    )


@pytest.fixture(scope="session")
def stream(small_folder: Path) -> list[str]:
    """The first packs of one rank with everything in memory: what all else must give."""
    return take(loader(small_folder), 24)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    """Of every kind in `FILES`, by name."""
    return {name: write(folder / name, **made) for name, made in FILES.items()}


@pytest.fixture(scope="session")
def two(files: dict[str, Path]) -> list[Path]:
    """One with reordered frames, and one of variable rate."""
    return [files["bframes.mp4"], files["gaps.mp4"]]
