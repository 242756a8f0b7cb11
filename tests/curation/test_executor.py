"""The executor in this process: order, memory, retries, failures alone. No files, no network."""

import multiprocessing
import time
from collections.abc import Sequence
from typing import Any

import pytest

from common.errors import MediaError, VfmError
from curation.config import CurateConfig
from curation.executors.local import LocalExecutor
from curation.pipeline import Graph, Memory
from curation.stage import Failure, Item, Stage
from curation.stages.analyse import Analyse
from curation.stages.ingest import Ingest
from curation.stages.transcode import Transcode
from tests.curation.counting import Number


class Twice(Stage[Number, Number]):
    """n to (10 n, 10 n + 1); 3 is a bad item, 4 fails once, 5 always."""

    name = "twice"

    def __init__(self, **params: Any) -> None:
        self._params = params
        self.calls: list[str] = []

    def params(self) -> dict[str, Any]:
        return self._params

    def setup(self) -> None:
        self.calls.append("setup")

    def teardown(self) -> None:
        self.calls.append("teardown")

    def process(self, item: Number) -> Sequence[Number | Failure]:
        self.calls.append(item.label)
        if item.value == 3:
            raise MediaError("odd", "three is odd")
        if item.value == 5 or (item.value == 4 and self.calls.count("4") == 1):
            raise RuntimeError("the weather")
        return [Number(value=10 * item.value), Number(value=10 * item.value + 1)]


class Slow(Twice):
    name = "slow"
    timeout_s = 0.05
    retries = 0

    def process(self, item: Number) -> Sequence[Number | Failure]:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            pass
        return [item]


class Notes:
    """A memory in a dictionary."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Sequence[Any]] = {}
        self.memory = Memory(recall=self.recall, record=self.record)

    def recall(self, stage: Stage[Any, Any], item: Item) -> Sequence[Any] | None:
        return self.kept.get((stage.name, item.content_id))

    def record(
        self, stage: Stage[Any, Any], item: Item, results: Sequence[Any], wall_s: float
    ) -> None:
        assert wall_s >= 0
        self.kept[stage.name, item.content_id] = results


def _run(stages: Sequence[Stage[Any, Any]], *values: int, notes: Notes | None = None) -> list[Any]:
    items = [Number(value=value) for value in values]
    return list(LocalExecutor().run(Graph.chain(stages), items, (notes or Notes()).memory))


def test_items_fan_out_and_fail_alone() -> None:
    stage = Twice()
    results = _run([stage], 1, 3, 4, 5, 2)
    values = [r.value for r in results if isinstance(r, Number)]
    assert values == [10, 11, 40, 41, 20, 21]
    odd, weather = [r for r in results if isinstance(r, Failure)]
    assert (odd.reason, odd.attempts, odd.lasting) == ("odd", 1, True)
    assert (weather.reason, weather.attempts, weather.lasting) == ("error", 2, False)
    assert "the weather" in weather.detail
    assert stage.calls == ["setup", "1", "3", "4", "4", "5", "5", "2", "teardown"]


class Moody(Twice):
    """1 is missing at first, 2 always, 3 ends the run."""

    name = "moody"

    def process(self, item: Number) -> Sequence[Number | Failure]:
        self.calls.append(item.label)
        if item.value == 3:
            raise VfmError("the disk is full")
        if item.value == 2 or self.calls.count("1") == 1:
            raise MediaError("missing", "not there")
        return [item]


def test_what_may_pass_is_tried_again_and_what_cannot_ends_the_run() -> None:
    stage = Moody()
    there, gone = _run([stage], 1, 2)
    assert there == Number(value=1)
    assert (gone.reason, gone.attempts, gone.lasting) == ("missing", 2, False)
    with pytest.raises(VfmError, match="the disk is full"):
        _run([stage], 3, 1)
    assert stage.calls.count("3") == 1


def test_failures_pass_the_later_stages_by() -> None:
    again = Twice()
    again.name = "again"
    results = _run([Twice(), again], 1, 3)
    assert [r.value for r in results if isinstance(r, Number)] == [100, 101, 110, 111]
    assert [r.label for r in results if isinstance(r, Failure)] == ["3"]


def test_what_is_known_is_not_done_again() -> None:
    notes, stage = Notes(), Twice()
    first = _run([stage], 1, 3, notes=notes)
    again = Twice()
    assert _run([again], 1, 3, notes=notes) == first
    assert again.calls == ["setup", "teardown"]


def test_an_item_over_its_time_fails() -> None:
    began = time.monotonic()
    (failure,) = _run([Slow()], 1)
    assert failure.reason == "timeout"
    assert time.monotonic() - began < 2


def test_hashes_follow_parameters() -> None:
    assert Twice(a=1, b=2).params_hash == Twice(b=2, a=1).params_hash
    assert len({Twice(a=1).params_hash, Twice(a=2).params_hash, Slow(a=1).params_hash}) == 3


def _hash_of(stage: Stage[Any, Any]) -> str:
    return stage.params_hash


@pytest.mark.parametrize("name", ["ingest", "analyse", "transcode"])
def test_stages_travel_to_other_processes(name: str, tmp_path: Any) -> None:
    config = CurateConfig(input="", output="")
    stages = [
        Ingest(retries=0),
        Analyse(config, tmp_path),
        Transcode(config.transcode, tmp_path, retries=0),
    ]
    stage = next(s for s in stages if s.name == name)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_hash_of, (stage,)) == stage.params_hash
