"""The loop on a simulated cluster: balance, queues, faults, graphs, nodes (wiring only)."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from common.errors import ConfigError, VfmError
from curation.engine.cluster import InputLost, PayloadLost, SetupFailed, WorkerLost
from curation.engine.orchestrator import Orchestrator
from curation.engine.packing import Node
from curation.engine.simulate import SimulatedCluster
from curation.pipeline import FORGETFUL, Graph, Memory, Step
from curation.stage import Failure, Item, Stage
from tests.curation.engine.pipelines import ONE, Run, items, reference, stage


def test_the_reference_pipeline_finds_its_balance_and_keeps_it() -> None:
    run = Run(reference(), ONE, 360)
    assert len(set(run.labels)) == len(run.labels) == 1080
    bound = 1080 * 1.1 / 10
    assert run.wall_s < 1.1 * bound
    sizes = run.sizes(20.0)
    assert (sizes["caption"], sizes["download"], sizes["scene"]) == (9, 1, 2)
    assert run.sizes(40.0)["caption"] == run.sizes(100.0)["caption"] == 9, "no shuffling"
    gpus = [w for w in run.cluster.history.values() if w.step.name in ("embed", "caption")]
    spans = [(w.busy, max(w.busy[0][0], 40.0), min(w.busy[-1][1], 110.0)) for w in gpus if w.busy]
    there = [(busy, begin, end) for busy, begin, end in spans if end > begin]
    spent = sum(
        max(0.0, min(b, end) - max(a, begin)) for busy, begin, end in there for a, b in busy
    )
    assert spent / sum(end - begin for _, begin, end in there) > 0.995
    for sample in run.orchestrator.sight.samples:
        assert all(step["queue"] <= 3 * 10 + 8 for step in sample["steps"].values())


def test_every_decision_has_a_reason() -> None:
    sight = Run(reference(), ONE, 60).orchestrator.sight
    assert sight.decisions
    assert all(line["reason"] for line in sight.decisions)


def test_known_times_need_no_search() -> None:
    priors = {"download": 0.05, "scene": 0.4, "transcode": 0.3, "embed": 0.1, "caption": 1.0}
    first = Run(reference(), ONE, 60, priors=priors).sizes(0.0)
    assert first["caption"] >= 8
    assert first["scene"] >= 2


def test_a_simulation_gives_the_same_each_time() -> None:
    one, two = Run(reference(), ONE, 60), Run(reference(), ONE, 60)
    assert one.wall_s == two.wall_s
    assert one.orchestrator.sight.decisions == two.orchestrator.sight.decisions


# ---- faults


def test_random_deaths_lose_nothing_and_double_nothing() -> None:
    chance = random.Random(3)

    def kill(step: str, item: Item, now: float) -> bool:
        return chance.random() < 0.02

    run = Run(reference(), ONE, 120, kill=kill)
    lost = sum(
        d["decision"].endswith("a worker was lost") for d in run.orchestrator.sight.decisions
    )
    assert lost > 15
    assert run.failures == []
    assert len(run.labels) == len(set(run.labels)) == 360


def test_items_that_kill_are_set_aside_and_their_neighbours_live() -> None:
    deadly = {"v3/1", "v7/0"}
    graph = Graph.chain(
        [stage("cut", 0.1, cpus=1.0, fan_out=3), stage("run", 0.2, cpus=1.0, batch_size=4)]
    )
    run = Run(graph, ONE, 12, kill=lambda step, item, now: step == "run" and item.label in deadly)
    assert {f.label for f in run.failures} == deadly
    assert {(f.stage, f.reason, f.attempts) for f in run.failures} == {("run", "kills_workers", 3)}
    assert len(run.labels) == 36 - 2


def test_what_is_remembered_is_not_done_again() -> None:
    graph = Graph.chain([stage("a", 0.1, cpus=1.0, fan_out=2), stage("b", 0.1, cpus=1.0)])
    kept: dict[tuple[str, str], Sequence[Any]] = {}

    def record(of: Stage[Any, Any], item: Item, results: Sequence[Any], wall_s: float) -> None:
        assert (of.name, item.label) not in kept, "recorded twice"
        kept[of.name, item.label] = list(results)

    memory = Memory(recall=lambda of, item: kept.get((of.name, item.label)), record=record)
    whole = Run(graph, ONE, 10, memory=memory)
    assert len(kept) == 10 + 20
    for label in ("v1/0", "v4/1"):
        del kept["b", label]
    del kept["a", "v7"]
    again = Run(graph, ONE, 10, memory=memory)
    assert again.labels == whole.labels
    worked = {name: pool.busy_s > 0 for name, pool in again.orchestrator.pools.items()}
    assert worked == {"a": True, "b": True}
    assert sum(len(w.busy) for w in again.cluster.history.values()) == 1 + 2
    third = Run(graph, ONE, 10, memory=memory)
    assert third.labels == whole.labels
    assert sum(len(w.busy) for w in third.cluster.history.values()) == 0


class Forgetting(SimulatedCluster):
    """Loses what some calls were given, once each, as when a node that held it dies."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.to_lose = {"v2/1", "v5/0"}
        self.to_lose_at_the_end = {"v3/2"}

    def submit(self, worker_id: int, call_id: int, payloads: Sequence[Any]) -> None:
        lost = self.to_lose.intersection(p.label for p in payloads)
        if lost and self._workers[worker_id].step.name == "b":
            self.to_lose -= lost
            self._push(self._now, InputLost(worker_id=worker_id, call_id=call_id))
        else:
            super().submit(worker_id, call_id, payloads)

    def value(self, payload: Any) -> Any:
        if payload.label in self.to_lose_at_the_end:
            self.to_lose_at_the_end.remove(payload.label)
            raise PayloadLost
        return super().value(payload)


def test_lost_objects_are_made_again_and_nothing_else() -> None:
    graph = Graph.chain([stage("a", 0.1, cpus=1.0, fan_out=3), stage("b", 0.1, cpus=1.0)])
    cluster = Forgetting(ONE, graph.followers)
    orchestrator = Orchestrator(graph, cluster, FORGETFUL, total=8)
    labels = sorted(r.label for r in orchestrator.run(items(8)))
    assert labels == sorted(f"v{i}/{k}" for i in range(8) for k in range(3))
    assert (cluster.to_lose, cluster.to_lose_at_the_end) == (set(), set())
    done = {name: pool.num_done for name, pool in orchestrator.pools.items()}
    assert done["a"] == 8 + 3
    assert done["b"] == 24 + 1


class Broken(SimulatedCluster):
    def start(self, worker_id: int, step: Step, slot: Any) -> None:
        super().start(worker_id, step, slot)
        if step.name == "b":
            self._push(self._now, SetupFailed(worker_id=worker_id, detail="no such model: x"))


def test_a_stage_that_cannot_start_ends_the_run_with_its_reason() -> None:
    graph = Graph.chain([stage("a", 0.1, cpus=1.0), stage("b", 0.1, cpus=1.0)])
    orchestrator = Orchestrator(graph, Broken(ONE, graph.followers), FORGETFUL)
    with pytest.raises(VfmError, match=r"stage b cannot start its workers \(no such model: x\)"):
        list(orchestrator.run(items(3)))


class Flaky(SimulatedCluster):
    """Of a stage's workers, those started after the first few die before they are ready."""

    starts = 0

    def start(self, worker_id: int, step: Step, slot: Any) -> None:
        super().start(worker_id, step, slot)
        self.starts += 1
        if 5 < self.starts < 15:
            self._push(self._now, WorkerLost(worker_id=worker_id, detail="its node is gone"))


def test_workers_lost_while_they_start_do_not_end_a_run_that_goes() -> None:
    graph = Graph.chain([stage("a", 0.5, cpus=1.0)])
    cluster = Flaky(ONE, graph.followers)
    results = list(Orchestrator(graph, cluster, FORGETFUL, total=100).run(items(100)))
    assert len({r.label for r in results}) == 100
    assert cluster.starts > 6


class Hanging(SimulatedCluster):
    """One item never comes back."""

    def submit(self, worker_id: int, call_id: int, payloads: Sequence[Any]) -> None:
        if payloads[0].label != "v1":
            super().submit(worker_id, call_id, payloads)


def test_a_worker_that_hangs_is_killed_and_its_item_fails() -> None:
    graph = Graph.chain([stage("a", 0.1, cpus=1.0, timeout_s=5.0, retries=1)])
    orchestrator = Orchestrator(graph, Hanging(ONE, graph.followers), FORGETFUL, total=6)
    results = list(orchestrator.run(items(6)))
    (failure,) = [r for r in results if isinstance(r, Failure)]
    assert (failure.label, failure.reason, failure.attempts) == ("v1", "timeout", 2)
    assert len(results) == 6


# ---- queues, graphs, nodes


def test_queues_are_bounded_by_bytes() -> None:
    big = stage("read", 0.01, cpus=1.0)
    big.num_bytes = 2**20
    graph = Graph.chain([big, stage("slow", 0.5, cpus=1.0)])
    store = 16 * 2**20
    run = Run(graph, ONE, 100, store_bytes=store)
    peak = max(
        sum(step["queue_bytes"] for step in sample["steps"].values())
        for sample in run.orchestrator.sight.samples
    )
    assert peak <= store / 2 / 2 + 2**20
    assert len(run.labels) == 100


def _is_even(item: Any) -> bool:
    return int(item.content_id[1:]) % 2 == 0


def test_graphs_fan_out_branch_filter_and_join() -> None:
    graph = Graph(
        [
            Step(stage=stage("read", 0.05, cpus=1.0)),
            Step(stage=stage("even", 0.05, cpus=1.0), after=("read",), when=_is_even),
            Step(stage=stage("each", 0.05, cpus=1.0, fan_out=2), after=("read",)),
            Step(stage=stage("drop", 0.05, cpus=1.0, fan_out=0), after=("read",)),
            Step(stage=stage("join", 0.05, cpus=1.0), after=("even", "each")),
        ]
    )
    run = Run(graph, ONE, 10)
    even = [f"v{i}" for i in range(0, 10, 2)]
    assert run.labels == sorted([*even, *(f"v{i}/{k}" for i in range(10) for k in range(2))])
    done = {name: pool.num_done for name, pool in run.orchestrator.pools.items()}
    assert done == {"read": 10, "even": 5, "each": 10, "drop": 10, "join": 25}


def test_what_is_no_graph_is_refused() -> None:
    a, b = stage("a", 1.0), stage("b", 1.0)
    with pytest.raises(ConfigError, match="two steps are called 'a'"):
        Graph([Step(stage=a), Step(stage=a)])
    with pytest.raises(ConfigError, match="'b' comes after 'x', which is no step"):
        Graph([Step(stage=a), Step(stage=b, after=("x",))])
    with pytest.raises(ConfigError, match="in a circle: "):
        Graph([Step(stage=a, after=("b",)), Step(stage=b, after=("a",))])


def test_nodes_join_and_leave() -> None:
    few, many = ONE, [*ONE, Node(node_id="more", cpus=8, gpus=8)]

    def there(now: float) -> list[Node]:
        return many if 20 < now < 45 else few

    run = Run(reference(), ONE, 240, nodes_at=there)
    assert len(run.labels) == 720
    assert run.sizes(18.0)["caption"] == 9
    assert run.sizes(40.0)["caption"] > 12
    decisions = run.orchestrator.sight.decisions
    seen = [d for d in decisions if d["decision"].startswith("nodes: ")]
    assert [d["decision"] for d in seen] == ["nodes: 1 came, 0 went", "nodes: 0 came, 1 went"]
    came = seen[0]["at_s"]
    assert 20 <= came < 22
    grown = [
        d["at_s"] for d in run.orchestrator.sight.decisions if "caption: 9 ->" in d["decision"]
    ]
    assert came <= grown[0] < came + 0.1, "at once"


def test_no_input_and_a_single_item() -> None:
    assert Run(reference(), ONE, 0).results == []
    assert Run(reference(), ONE, 1).labels == ["v0/0", "v0/1", "v0/2"]


def test_a_starved_caption_stage_is_named_with_its_mend() -> None:
    """Scene detection at one worker starves captioning; at balance nothing is left to say."""
    graph = Graph(
        [
            Step(stage=stage("scene", 0.8, cpus=1.0), workers=1),
            Step(stage=stage("caption", 0.28, gpus=1.0), after=("scene",), workers=1),
        ]
    )
    cluster = SimulatedCluster(ONE, graph.followers)
    orchestrator = Orchestrator(graph, cluster, FORGETFUL, total=60)
    results = orchestrator.run(items(60))
    for _ in range(30):
        next(results)
    told = orchestrator.sight.bottleneck()
    assert told.startswith("scene is the slowest: 1 worker for 1.2")
    assert "give it 3 and expect 2." in told
    results.close()
