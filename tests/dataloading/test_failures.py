"""Wiring tier: a killed worker and a storage that goes away end in an error with a name."""

import itertools
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, DataError
from dataloading.config import Compression, LoaderConfig
from dataloading.loader import PackedLoader
from dataloading.samples import SampleLoader
from dataloading.workers import WorkerLoader
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
@pytest.mark.parametrize("waited_s", [0.0, 0.5])
def test_a_killed_worker_is_named(source: PackedLoader, waited_s: float) -> None:
    before = {process.pid for process in multiprocessing.active_children()}
    loader = WorkerLoader(source, num_workers=2, ahead=1)
    batches = iter(loader)
    next(batches)
    workers = [p.pid for p in multiprocessing.active_children() if p.pid not in before]
    assert len(workers) == 2
    pid = workers[0]
    assert pid is not None
    # While batches are asked for: torch's handler of signals may raise in any line of ours.
    threading.Timer(waited_s, os.kill, [pid, signal.SIGKILL]).start()
    with pytest.raises(DataError, match=rf"worker \d of the loader \(process {pid}\) was killed"):
        list(itertools.islice(batches, 5000))


@pytest.mark.timeout(60)
def test_an_error_in_a_worker_comes_without_its_traceback(source: PackedLoader) -> None:
    source._table.shards[0].unlink()
    source._table.shards[1].unlink()
    with pytest.raises(DataError) as told:
        next(iter(WorkerLoader(source, num_workers=1)))
    assert str(told.value).startswith("cannot read ")
    assert str(told.value).endswith("No such file or directory (worker 0 of the loader)")


def test_workers_give_the_batches_of_one_process(source: PackedLoader) -> None:
    expected = [batch.sample_ids for batch in itertools.islice(source, 5)]
    for num_workers in (0, 2):
        source.load_state_dict(PackedLoader(source.config, Compression()).state_dict())
        loader = WorkerLoader(source, num_workers=num_workers)
        assert [batch.sample_ids for batch in itertools.islice(loader, 5)] == expected
    with pytest.raises(ConfigError, match="num_workers=-1"):
        WorkerLoader(source, num_workers=-1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["packs", "samples"])
def test_a_storage_that_does_not_answer_is_named(source: PackedLoader, kind: str) -> None:
    """A pipe without a writer keeps whoever opens it waiting, as a dead network disk does."""
    shards = source._table.shards
    if kind == "packs":
        source.config = replace(source.config, storage_timeout_s=1.0)
        stream: Any = PackedLoader(source.config, Compression())
    else:
        loader = SampleLoader(shards[0].parent.parent, 1, num_threads=1, storage_timeout_s=1.0)
        stream = loader
    for shard in shards:
        shard.unlink()
        os.mkfifo(str(shard))
    try:
        with pytest.raises(DataError, match=r"[ab]\.tar has not answered for \d+ s, more than"):
            list(itertools.islice(iter(stream), 50))
    finally:
        # Lets the threads go that still wait.
        ends = [os.open(str(shard), os.O_RDWR) for shard in shards]
        time.sleep(0.1)
        for end in ends:
            os.close(end)


@pytest.mark.timeout(60)
def test_a_shard_that_goes_away_is_named(source: PackedLoader) -> None:
    for shard in source._table.shards:
        shard.unlink()
    with pytest.raises(DataError, match=r"cannot read .*/[ab]\.tar: No such file"):
        list(itertools.islice(source, 20))
