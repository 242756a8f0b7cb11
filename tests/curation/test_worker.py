"""What a remote worker does with a call, without Ray: batches, faults (wiring only)."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from common.errors import MediaError, VfmError
from curation.executors.worker import Report, StageWorker
from curation.stage import Failure, Stage
from tests.curation.counting import Number, comparable, numbers


class Double(Stage[Number, Number]):
    """n to 2 n, singly."""

    name = "double"
    batch_size = 8
    retries = 0

    def __init__(self) -> None:
        self.batches: list[int] = []

    def params(self) -> dict[str, Any]:
        return {}

    def process(self, item: Number) -> Sequence[Number | Failure]:
        if item.value == 3:
            raise MediaError("odd", "three is odd")
        if item.value == 99:
            raise VfmError("the disk is full")
        return [Number(value=2 * item.value)]


class DoubleMany(Double):
    """The same, many at once."""

    def process_batch(self, items: Sequence[Number]) -> Sequence[Sequence[Number | Failure]]:
        self.batches.append(len(items))
        return super().process_batch(items)


class TooFew(DoubleMany):
    def process_batch(self, items: Sequence[Number]) -> Sequence[Sequence[Number | Failure]]:
        return super().process_batch(items)[:-1]


class Slow(DoubleMany):
    timeout_s = 0.05

    def process_batch(self, items: Sequence[Number]) -> Sequence[Sequence[Number | Failure]]:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            pass
        return super().process_batch(items)


def told(stage: Stage[Any, Any], items: Sequence[Number]) -> tuple[list[Report], list[Any]]:
    reports, results = StageWorker(stage, ()).run_small(*items)
    assert sum(len(report.results) for report in reports) == len(results)
    return reports, [*results, *(failure for report in reports for failure in report.failures)]


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("kind", [DoubleMany, TooFew, Slow])
def test_a_batch_gives_what_its_items_give_alone(kind: type[DoubleMany], count: int) -> None:
    """A bad item fails alone; a batch with a wrong number of results or over its time is done again
    one by one."""
    alone = [result for item in numbers(count) for result in told(Double(), [item])[1]]
    reports, results = told(kind(), numbers(count))
    assert comparable(results) == comparable(alone)
    assert len(reports) == count
    for report, item in zip(reports, numbers(count), strict=True):
        assert report.began_s <= report.ended_s
        assert [r.key.label for r in report.results] == (
            [] if item.value == 3 else [str(2 * item.value)]
        )


def test_a_model_sees_the_whole_batch_at_once() -> None:
    stage = DoubleMany()
    told(stage, [Number(value=value) for value in (0, 1, 2, 4)])
    assert stage.batches == [4]
    told(stage, [Number(value=1)])
    assert stage.batches == [4], "one item is no batch"


@pytest.mark.parametrize("kind", [Double, DoubleMany])
def test_a_fault_of_the_machine_is_told_at_once(kind: type[Double]) -> None:
    reports, _ = told(kind(), [Number(value=value) for value in (99, 1, 2)])
    assert reports[-1].refusal == "the disk is full"
