"""Gloo tier: the pool itself. Processes are reused, and what fails is told and replaced."""

import os
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from tests.distributed.pool import Pool, WorldError


def rank_sum(scale: int) -> tuple[int, int]:
    total = torch.tensor([dist.get_rank() * scale])
    dist.all_reduce(total)
    return int(total), os.getpid()


def fail_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError("a wish that cannot be met")


def die_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(3)


def hang_on(rank: int) -> None:
    if dist.get_rank() == rank:
        time.sleep(600)


def test_processes_are_reused(worlds):
    for size, pool in worlds.items():
        first, second = pool.run(rank_sum, 1), pool.run(rank_sum, 10)
        total = sum(range(size))
        assert [value for value, _ in first] == [total] * size
        assert [value for value, _ in second] == [10 * total] * size
        assert [pid for _, pid in first] == [pid for _, pid in second]


@pytest.fixture(scope="module")
def own() -> Iterator[Pool]:
    """A world that may be broken."""
    pool = Pool(2)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fail_on, "rank 1: .*(?s:.)*a wish that cannot be met"),
        (die_on, "rank 1: the process died"),
        (hang_on, r"no answer from ranks \[1\] \(limit 1 s\)"),
    ],
)
def test_failures_are_told_and_the_world_is_replaced(own, function, message):
    with pytest.raises(WorldError, match=message):
        own.run(function, 1, timeout_s=1.0 if function is hang_on else 60.0)
    assert [value for value, _ in own.run(rank_sum, 1)] == [1, 1]
