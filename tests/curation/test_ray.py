"""The executor on Ray, one small cluster for all: the same results as in this process, whatever
dies (real processes on this machine; no GPU, logical ones are counted)."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from common.errors import MediaError, VfmError
from curation.executors.local import LocalExecutor
from curation.executors.ray import RayConfig, RayExecutor
from curation.pipeline import FORGETFUL, Graph, Step
from curation.stage import Failure, Resources, Stage
from tests.curation.counting import Number, comparable, numbers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Ray's actors need POSIX here")


class Split(Stage[Number, Number]):
    """n to (10 n, 10 n + 1), each of a megabyte; odd ends are the world's fault or the item's."""

    name = "split"
    resources = Resources(cpus=0.5)

    def params(self) -> dict[str, Any]:
        return {}

    def process(self, item: Number) -> Sequence[Number | Failure]:
        if item.value == 3:
            raise MediaError("odd", "three is odd")
        if item.value == 5:
            raise RuntimeError("the weather")
        weight = bytes([item.value]) * 2**20
        return [Number(value=10 * item.value + k, weight=weight) for k in range(2)]


class Weigh(Stage[Number, Number]):
    """Drops the weight once it is seen to be right."""

    name = "weigh"
    resources = Resources(cpus=0.25, gpus=1.0, min_gpus=0.25)
    setup_s = 0.1

    def __init__(self, *, deadly: int | None = None, notes: Path | None = None) -> None:
        self._deadly = deadly
        self._notes = notes

    def params(self) -> dict[str, Any]:
        return {"deadly": self._deadly}

    def setup(self) -> None:
        self._loaded = True

    def process(self, item: Number) -> Sequence[Number | Failure]:
        assert self._loaded
        assert item.weight == bytes([item.value // 10]) * 2**20
        if item.value == self._deadly:
            os._exit(1)
        if self._notes is not None:
            with self._notes.open("a") as file:
                file.write(f"{item.value}\n")
            time.sleep(0.05)
        return [Number(value=item.value)]


class Full(Weigh):
    name = "full"

    def process(self, item: Number) -> Sequence[Number | Failure]:
        raise VfmError("the disk is full: free some space")


class Unready(Weigh):
    name = "unready"

    def setup(self) -> None:
        raise OSError("no such model: /models/x")


@pytest.fixture(scope="module")
def ray_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayExecutor]:
    # The workers must not find look-alikes in the folder where somebody works.
    folder = tmp_path_factory.mktemp("lookalikes")
    for name in ("curation", "common", "models", "tests"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise SystemExit('a look-alike')\n")
    before = Path.cwd()
    os.chdir(folder)
    try:
        with RayExecutor(RayConfig(num_cpus=2, num_gpus=1, object_store_mib=100)) as executor:
            yield executor
    finally:
        os.chdir(before)


def test_the_same_as_in_this_process(ray_executor: RayExecutor) -> None:
    graph = Graph.chain([Split(), Weigh()])
    here = list(LocalExecutor().run(graph, numbers(12), FORGETFUL))
    there = list(ray_executor.run(graph, numbers(12), FORGETFUL, total=12))
    assert comparable(there) == comparable(here)
    (weather,) = [r for r in there if isinstance(r, Failure) and r.reason == "error"]
    assert (weather.attempts, weather.lasting) == (2, False)
    assert "RuntimeError: the weather" in weather.traceback
    sight = ray_executor.sight
    assert sight.samples[-1]["steps"]["weigh"]["done"] == 20
    assert all(line["reason"] for line in sight.decisions)


def test_an_item_that_kills_its_workers_is_set_aside(ray_executor: RayExecutor) -> None:
    graph = Graph.chain([Split(), Weigh(deadly=40)])
    results = list(ray_executor.run(graph, numbers(8), FORGETFUL, total=8))
    failures = {r.label: r for r in results if isinstance(r, Failure)}
    assert set(failures) == {"3", "5", "40"}
    assert (failures["40"].reason, failures["40"].attempts) == ("kills_workers", 3)
    assert len(results) - len(failures) == 11


def test_killed_workers_cost_nothing_but_time(ray_executor: RayExecutor, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    graph = Graph(
        [
            Step(stage=Split()),
            Step(stage=Weigh(notes=notes), after=("split",)),
        ]
    )
    values, kills = [], 0
    for result in ray_executor.run(graph, numbers(20), FORGETFUL, total=20):
        values.append(result)
        assert ray_executor.cluster is not None
        victims = sorted(ray_executor.cluster.processes.values())
        if len(values) in (4, 16) and victims:
            os.kill(victims[0 if kills else -1], signal.SIGKILL)
            kills += 1
    assert kills == 2
    done = [r.value for r in values if not isinstance(r, Failure)]
    assert sorted(done) == sorted(10 * n + k for n in range(20) if n not in (3, 5) for k in (0, 1))
    told = [line["decision"] for line in ray_executor.sight.decisions]
    assert sum(what.endswith("a worker was lost") for what in told) == 2
    assert len(notes.read_text().splitlines()) <= len(done) + 2, "only what was in hand is redone"


def test_a_fault_of_the_machine_ends_the_run(ray_executor: RayExecutor) -> None:
    with pytest.raises(VfmError, match="the disk is full: free some space"):
        list(ray_executor.run(Graph.chain([Full()]), numbers(2), FORGETFUL))


def test_a_stage_that_cannot_load_is_named(ray_executor: RayExecutor) -> None:
    with pytest.raises(VfmError, match="stage unready cannot start .*no such model: /models/x"):
        list(ray_executor.run(Graph.chain([Unready()]), numbers(2), FORGETFUL))
