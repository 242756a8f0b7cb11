"""Wiring tier: a killed worker and a storage that goes away end in an error with a name."""

import itertools
import os
import signal
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from common.errors import DataError
from dataloading.config import Compression, LoaderConfig
from dataloading.loader import PackedLoader
from tests.dataloading.folder import Clip, make_folder


@pytest.fixture
def source(tmp_path: Path) -> PackedLoader:
    clips = [Clip(clip_id=f"c{i}", num_frames=12) for i in range(6)]
    folder = make_folder(tmp_path, {"a": clips[:3], "b": clips[3:]})
    config = LoaderConfig(
        path=str(folder), token_budget=12, num_frames=[5], size=[32, 32], cache_bytes=0
    )
    return PackedLoader(config, Compression())


@pytest.mark.timeout(60)
def test_a_killed_worker_is_an_error_and_no_hang(source: PackedLoader) -> None:
    batches = iter(DataLoader(source, batch_size=None, num_workers=1, prefetch_factor=1))
    next(batches)
    os.kill(batches._workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
    # Where it was killed while its tensors travelled, torch says that the connection is gone.
    with pytest.raises((RuntimeError, OSError, EOFError)):
        list(itertools.islice(batches, 20))


@pytest.mark.timeout(60)
def test_a_shard_that_goes_away_is_named(source: PackedLoader) -> None:
    next(source)
    for shard in source._table.shards:
        shard.unlink()
    with pytest.raises(DataError, match=r"cannot read .*/[ab]\.tar: No such file"):
        list(itertools.islice(source, 20))
