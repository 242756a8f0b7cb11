"""A cluster that is not there: the same orchestrator and policy, on a clock that jumps.

Nothing is slept, so a day of two thousand GPUs takes seconds. Every draw is a function of the seed,
the stage and the item, so a simulation gives the same figures each time.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from curation.engine.cluster import Done, Event, Made, Outcome, Ready, WorkerLost, key_of
from curation.engine.packing import Node, Slot
from curation.pipeline import Step, takers
from curation.stage import Failure, Item, Stage


@dataclass(frozen=True, kw_only=True)
class SimItem:
    """An item that is only a name."""

    content_id: str
    span: str = ""

    @property
    def label(self) -> str:
        return f"{self.content_id}{self.span}"


class SimStage(Stage[Any, Any]):
    """A stage of which only the times and the counts are known.

    Args:
        service_s: seconds per item at a whole share.
        fan_out: results per item.
        load_s: of its model.
    """

    def __init__(
        self,
        name: str,
        *,
        service_s: Callable[[Item], float],
        fan_out: Callable[[Item], int] = lambda item: 1,
        load_s: float = 0.0,
        num_bytes: int = 0,
    ) -> None:
        self.name = name
        self.service_s = service_s
        self.fan_out = fan_out
        self.load_s = self.setup_s = load_s
        self.num_bytes = num_bytes

    def params(self) -> dict[str, Any]:
        return {}

    def process(self, item: Item) -> Sequence[SimItem | Failure]:
        count = self.fan_out(item)
        if count == 1:
            return [SimItem(content_id=item.content_id, span=item.span)]
        return [
            SimItem(content_id=item.content_id, span=f"{item.span}/{number}")
            for number in range(count)
        ]


@dataclass(kw_only=True)
class _SimWorker:
    step: Step
    slot: Slot
    free_s: float
    busy: list[tuple[float, float]] = field(default_factory=list)


class SimulatedCluster:
    """Workers that start after `start_s`, load, and take as long as their stages say.

    Args:
        start_s: of a worker's process.
        starts_at_once: processes that a node starts side by side without loss, as it has processors
            for; more take in proportion longer.
        per_call_s: from a call until a free worker begins with it.
        followers: of each step, for the routes of results.
        nodes_at: the machines at a time, for those that come and go; None keeps `nodes`.
        kill: whether a worker dies on an item, as a function of (step, item, seconds).
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        followers: Any,
        *,
        start_s: float = 1.0,
        starts_at_once: int | None = None,
        per_call_s: float = 0.002,
        store_bytes: float = math.inf,
        nodes_at: Callable[[float], Sequence[Node]] | None = None,
        kill: Callable[[str, Item, float], bool] = lambda step, item, now: False,
    ) -> None:
        self._nodes = nodes
        self._followers = followers
        self._start_s = start_s
        self._starts_at_once = starts_at_once
        self._busy_until_s: dict[str, float] = {}
        """Of each node, when it may start more processes at full speed."""
        self._fresh: list[int] = []
        """Workers that were started since the last poll."""
        self._per_call_s = per_call_s
        self._store_bytes = store_bytes
        self._nodes_at = nodes_at
        self._kill = kill
        self._now = 0.0
        self._events: list[tuple[float, int, Event]] = []
        self._count = itertools.count()
        self._workers: dict[int, _SimWorker] = {}
        self.history: dict[int, _SimWorker] = {}

    def now(self) -> float:
        return self._now

    def nodes(self) -> Sequence[Node]:
        return self._nodes if self._nodes_at is None else self._nodes_at(self._now)

    def start(self, worker_id: int, step: Step, slot: Slot) -> None:
        worker = _SimWorker(step=step, slot=slot, free_s=math.inf)
        self._workers[worker_id] = self.history[worker_id] = worker
        self._fresh.append(worker_id)

    def _begin(self) -> None:
        """Those that were started at the same moment on a node share its processors, so they come
        up together."""
        for node_id in {self._workers[w].slot.node_id for w in self._fresh if w in self._workers}:
            workers = [
                (worker_id, worker)
                for worker_id in self._fresh
                if (worker := self._workers.get(worker_id)) and worker.slot.node_id == node_id
            ]
            at_once = self._starts_at_once or len(workers)
            up_s = max(self._now, self._busy_until_s.get(node_id, 0.0))
            up_s += self._start_s * max(1.0, len(workers) / at_once)
            if self._starts_at_once:
                self._busy_until_s[node_id] = up_s - self._start_s
            for worker_id, worker in workers:
                stage = worker.step.stage
                load_s = stage.load_s if isinstance(stage, SimStage) else 0.0
                worker.free_s = up_s + load_s
                self._push(worker.free_s, Ready(worker_id=worker_id, loaded_s=load_s))
        self._fresh.clear()

    def submit(self, worker_id: int, call_id: int, payloads: Sequence[Any]) -> None:
        worker = self._workers[worker_id]
        stage = worker.step.stage
        assert isinstance(stage, SimStage)
        at = max(worker.free_s, self._now + self._per_call_s)
        outcomes = []
        for item in payloads:
            began = at
            at += stage.service_s(item) / worker.slot.share
            worker.busy.append((began, at))
            if self._kill(worker.step.name, item, began):
                self._push(at, WorkerLost(worker_id=worker_id, detail="killed"))
                worker.free_s = math.inf
                return
            outcomes.append(self._outcome(worker.step, item, began, at))
        worker.free_s = at
        self._push(at, Done(worker_id=worker_id, call_id=call_id, outcomes=outcomes))

    def _outcome(self, step: Step, item: Item, began: float, ended: float) -> Outcome:
        results, failures = [], []
        stage = step.stage
        assert isinstance(stage, SimStage)
        for result in stage.process(item):
            if isinstance(result, Failure):
                failures.append(result)
                continue
            names = takers(self._followers[step.name], result)
            made = Made(
                key=key_of(result, item), payload=result, num_bytes=stage.num_bytes, takers=names
            )
            results.append(made)
        return Outcome(results=results, failures=failures, began_s=began, ended_s=ended)

    def stop(self, worker_id: int, *, kill: bool = False) -> None:
        self._workers.pop(worker_id, None)

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """The next moment at which something happens, or that at which the wait is over."""
        self._begin()
        until = self._now + timeout_s
        if not self._events or self._events[0][0] > until:
            self._now = until
            return []
        self._now = max(self._now, self._events[0][0])
        found = []
        while self._events and self._events[0][0] <= self._now:
            event = heapq.heappop(self._events)[2]
            if getattr(event, "worker_id", None) in self._workers:
                found.append(event)
        return found

    def value(self, payload: Any) -> Any:
        return payload

    def store_bytes(self) -> float:
        return self._store_bytes

    def _push(self, at: float, event: Event) -> None:
        heapq.heappush(self._events, (at, next(self._count), event))
