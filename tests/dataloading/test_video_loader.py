"""Batches of windows of plain video files: their order, state and ranks (wiring only)."""

import json
from pathlib import Path

import pytest
import torch

from common.errors import DataError
from dataloading.video import VideoLoader
from tests.dataloading.films import dataset, run, same


def test_an_epoch_is_every_window_once_in_an_order_of_its_own(two: list[Path]) -> None:
    data = dataset(two)
    loader = VideoLoader(data, batch_size=4, shuffle=True)
    epochs = [run(loader), run(loader)]
    for epoch in epochs:
        assert sorted(i for indices, _ in epoch for i in indices) == list(range(len(data)))
        assert len(epoch) == len(loader) == -(-len(data) // 4)
        assert epoch[0][1].shape == (4, 3, 3, 32, 32)
    assert [i for i, _ in epochs[0]] != [i for i, _ in epochs[1]]
    plain = [i for indices, _ in run(VideoLoader(data, batch_size=4)) for i in indices]
    assert plain == list(range(len(data)))
    assert len(VideoLoader(data, batch_size=4, drop_last=True)) == len(data) // 4


def test_threads_and_prefetch_change_nothing(two: list[Path]) -> None:
    runs = [
        run(VideoLoader(dataset(two), 4, True, num_threads=threads, prefetch=ahead), 2)
        for threads, ahead in ((1, 1), (4, 3), (3, 9))
    ]
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])


@pytest.mark.parametrize("taken", [0, 1, 5, 7, 8, 9])
def test_a_state_continues_exactly(taken: int, two: list[Path]) -> None:
    whole = run(VideoLoader(dataset(two), 4, True), 3)
    loader = VideoLoader(dataset(two), 4, True)
    per_epoch = len(loader)
    assert per_epoch == 8
    count = 0
    while count < taken:
        for _ in loader:
            count += 1
            if count == taken:
                break
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = VideoLoader(dataset(two), 4, True, num_threads=1)
    resumed.load_state_dict(state)
    rest = run(resumed, 3 - taken // per_epoch)
    assert same(rest, whole[taken:])


def test_states_of_other_batches_are_refused(two: list[Path]) -> None:
    state = VideoLoader(dataset(two), 4, True).state_dict()
    for other in (
        VideoLoader(dataset(two), 5, True),
        VideoLoader(dataset(two), 4, False),
        VideoLoader(dataset(two[::-1]), 4, True),
        VideoLoader(dataset(two, flip=0.4), 4, True),
    ):
        with pytest.raises(DataError, match="cannot continue other batches: "):
            other.load_state_dict(state)
    with pytest.raises(DataError, match="lacks identity, epoch, batch, skipped"):
        VideoLoader(dataset(two)).load_state_dict({"version": 1})


def test_ranks_share_an_epoch(two: list[Path]) -> None:
    alone = run(VideoLoader(dataset(two), 4, True))
    shares = [run(VideoLoader(dataset(two), 4, True, rank=r, num_ranks=3)) for r in range(3)]
    assert [len(share) for share in shares] == [2, 2, 2]
    mixed = [share[k] for k in range(2) for share in shares]
    assert same(mixed, alone[:6])


def test_an_older_iterator_says_that_it_ended(two: list[Path]) -> None:
    loader = VideoLoader(dataset(two), 4)
    older = iter(loader)
    next(older)
    assert len(run(loader)) == len(loader)
    with pytest.raises(RuntimeError, match="ended when another was begun"):
        next(older)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="GPU tier: no CUDA device here")
def test_frames_on_the_gpu_are_those_of_the_processor(two: list[Path]) -> None:
    data = dataset(two, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    on_gpu = run(VideoLoader(data, 4, True, device="cuda"), 2)
    assert all(frames.is_cuda for _, frames in on_gpu)
    on_cpu = run(VideoLoader(data, 4, True), 2)
    assert [i for i, _ in on_gpu] == [i for i, _ in on_cpu]
    for (_, a), (_, b) in zip(on_gpu, on_cpu, strict=True):
        assert torch.allclose(a.cpu(), b, atol=1e-6)
