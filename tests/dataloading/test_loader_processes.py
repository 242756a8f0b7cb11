"""The loader's threads, under torch's loaders, and in forks (wiring only)."""

import gc
import itertools
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from torch.utils.data import DataLoader

from common.errors import ConfigError
from dataloading.batch import Batch
from dataloading.loader import PackedLoader
from dataloading.plan import Planner
from dataloading.reader import WindowReader
from tests.dataloading.packs import digest, loader, take


def test_threads_end(small_folder: Path) -> None:
    def ours() -> set[str]:
        return {t.name for t in threading.enumerate() if t.name.startswith("loader-")}

    with loader(small_folder, prefetch_packs=1) as source:
        next(source)
        assert ours()
    assert not ours()
    forgotten = loader(small_folder, prefetch_packs=1)
    next(forgotten)
    del forgotten
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("loader-"):
            thread.join(timeout=5)
    assert not ours()


def test_works_inside_torchs_dataloader(small_folder: Path, stream: list[str]) -> None:
    source = loader(small_folder)
    wrapped = DataLoader(source, batch_size=None, num_workers=0)
    assert [digest(batch) for batch in itertools.islice(wrapped, 4)] == stream[:4]
    # What a run would save is where it is.
    assert source.state_dict()["next_pack"] == 4


def in_workers(source: PackedLoader, workers: int, count: int) -> list[Batch]:
    """The first batches as a `DataLoader` with these workers gives them, and its end is awaited."""
    wrapped = iter(DataLoader(source, batch_size=None, num_workers=workers))
    try:
        return list(itertools.islice(wrapped, count))
    finally:
        del wrapped


def test_workers_of_torchs_dataloader_keep_the_order_and_the_state_moves_on(
    small_folder: Path, stream: list[str]
) -> None:
    # Two ranks of two workers, then one rank of three, then none of any.
    first = [in_workers(loader(small_folder, rank=r, ranks=2), 2, 4) for r in range(2)]
    assert [digest(b) for pair in zip(*first, strict=True) for b in pair] == stream[:8]
    states = [share[2].loader_state for share in first]
    assert states[0] == states[1]
    resumed = loader(small_folder)
    resumed.load_state_dict(json.loads(json.dumps(states[0])))
    then = in_workers(resumed, 3, 5)
    assert [digest(b) for b in then] == stream[6:11]
    assert then[-1].loader_state is not None
    alone = loader(small_folder)
    alone.load_state_dict(then[-1].loader_state)
    assert take(alone, 5) == stream[11:16]
    whole = [digest(b) for b in loader(small_folder, split="val")]
    assert [digest(b) for b in in_workers(loader(small_folder, split="val"), 2, 99)] == whole


def test_torchdatas_loader_saves_and_restores_by_itself(
    small_folder: Path, stream: list[str]
) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is absent")
    for stop in (1, 4):
        saving = torchdata.StatefulDataLoader(loader(small_folder), batch_size=None, num_workers=2)
        batches = iter(saving)
        assert [digest(next(batches)) for _ in range(stop)] == stream[:stop]
        state = saving.state_dict()
        del batches, saving
        going_on = torchdata.StatefulDataLoader(
            loader(small_folder), batch_size=None, num_workers=2
        )
        going_on.load_state_dict(state)
        batches = iter(going_on)
        assert [digest(next(batches)) for _ in range(5)] == stream[stop : stop + 5]
        del batches, going_on


def test_workers_that_read_ahead_are_not_asked_again(
    small_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not through a DataLoader: torch takes 5 s to end each worker that raised.
    worker = SimpleNamespace(id=0, num_workers=2)
    monkeypatch.setattr("dataloading.loader.get_worker_info", lambda: worker)
    again = loader(small_folder)
    iter(again)
    with pytest.raises(ConfigError, match="persistent workers"):
        iter(again)


def in_a_fork(work: Callable[[], Any]) -> Any:
    """What `work` gives in a forked process; fails where it does not end."""
    context = multiprocessing.get_context("fork")
    theirs, ours = context.Pipe()
    process = context.Process(target=lambda: theirs.send(work()), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.poll(30), "the forked process hangs"
        return ours.recv()
    finally:
        process.kill()
        process.join()


def test_a_forked_process_goes_on_from_the_last_batch(
    small_folder: Path, stream: list[str]
) -> None:
    with loader(small_folder) as source:
        assert [digest(next(source)) for _ in range(3)] == stream[:3]
        # `take` closes the loader afterwards, which must not touch the threads of this process.
        assert in_a_fork(lambda: take(source, 4)) == stream[3:7]
        assert [digest(next(source)) for _ in range(4)] == stream[3:7]
    with loader(small_folder, split="val") as source:
        whole = [digest(b) for b in source]
        next(iter(source))
        assert in_a_fork(lambda: [digest(b) for b in source]) == whole


def test_a_fork_while_a_clip_is_being_read(
    small_folder: Path, stream: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clip's frames never arrive in the forked process, which has to read them itself."""
    here, gate, reading = os.getpid(), threading.Event(), threading.Event()
    source = loader(small_folder, num_threads=1)
    first = source._planner().next_pack()
    assert first is not None
    calls = itertools.count()
    decode = WindowReader._decoded

    def decoded(*args: Any, **options: Any) -> Any:
        if os.getpid() == here and next(calls) >= len(first.samples):
            reading.set()
            gate.wait(60)
        return decode(*args, **options)

    monkeypatch.setattr(WindowReader, "_decoded", decoded)
    with source:
        assert digest(next(source)) == stream[0]
        assert reading.wait(10)
        try:
            assert in_a_fork(lambda: take(source, 3)) == stream[1:4]
        finally:
            gate.set()
        assert digest(next(source)) == stream[1]


@pytest.mark.parametrize("prefetch_packs", [1, 3])
def test_no_more_is_planned_than_is_asked_to_be_read_ahead(
    small_folder: Path, monkeypatch: pytest.MonkeyPatch, prefetch_packs: int
) -> None:
    planned = []
    plan = Planner.next_pack
    monkeypatch.setattr(Planner, "next_pack", lambda self: planned.append(1) or plan(self))
    with loader(small_folder, prefetch_packs=prefetch_packs) as source:
        for taken in range(1, 4):
            next(source)
            deadline = time.monotonic() + 10
            while len(planned) < taken + prefetch_packs and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.15)
            assert len(planned) == taken + prefetch_packs


def test_a_plan_that_fails_does_not_end_the_stream(
    small_folder: Path, stream: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Planner.next_pack
    monkeypatch.setattr(Planner, "next_pack", Mock(side_effect=MemoryError("full")))
    source = loader(small_folder)
    for _ in range(2):
        with pytest.raises(MemoryError, match="full"):
            next(source)
    monkeypatch.setattr(Planner, "next_pack", plan)
    assert take(source, 3) == stream[:3]
