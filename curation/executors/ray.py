"""The executor on Ray: a pool of actors per stage, sized and fed by `curation.engine`.

Ray schedules the actors, counts their resources, moves what they make from node to node, and says
when one is gone. How many there are and which item goes where is decided in the orchestrator.
"""

import contextlib
import dataclasses
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from common.errors import VfmError
from curation.engine.cluster import (
    Done,
    Event,
    InputLost,
    Made,
    Outcome,
    PayloadLost,
    Ready,
    Refused,
    SetupFailed,
    WorkerLost,
)
from curation.engine.crew import Pace
from curation.engine.orchestrator import Orchestrator
from curation.engine.packing import Node, Slot
from curation.engine.sight import Sight
from curation.executors.config import RayConfig
from curation.executors.gauges import GaugedSight
from curation.executors.worker import Report, StageWorker
from curation.pipeline import Graph, Memory, Step
from curation.stage import Failure, Item

_ROOT = Path(__file__).resolve().parents[2]
"""The folder from which our packages are imported, here and in the workers."""
_SMALL_BYTES = 16 * 2**10
"""Results under this travel with the report on them; a reference would cost more."""
_RAYS_OWN = ("CPU", "GPU", "memory", "object_store_memory")


class RayExecutor:
    """Streams items through pools of actors. As a context it holds the cluster, which it joins or
    starts once there is something to do.

    Args:
        series: a file for the samples and decisions of each run, as lines of JSON.
    """

    def __init__(
        self,
        config: RayConfig | None = None,
        *,
        series: Path | None = None,
        priors: Mapping[str, float] | None = None,
    ) -> None:
        self._config = config or RayConfig()
        self._series = series
        self._priors = priors
        self._began_s: float | None = None
        self.sight: Sight = Sight()
        """Of the current run."""
        self.cluster: RayCluster | None = None
        self.workers: dict[str, int] = {}

    def __enter__(self) -> "RayExecutor":
        self._began_s = time.monotonic()
        if self._series is not None:
            self._series.unlink(missing_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        ray.shutdown()

    def run(
        self,
        graph: Graph,
        items: Iterable[Item],
        memory: Memory,
        *,
        total: int | None = None,
    ) -> Iterator[Any | Failure]:
        fixed = self._config.workers
        graph = Graph(
            dataclasses.replace(step, workers=fixed.get(step.name, step.workers))
            for step in graph.steps.values()
        )
        self.sight = GaugedSight(self._series, began_s=self._began_s)
        self.cluster = RayCluster(graph, self._config)
        orchestrator = Orchestrator(
            graph,
            self.cluster,
            memory,
            total=total,
            priors=self._priors,
            pace=Pace(headroom=self._config.headroom),
            sight=self.sight,
        )
        try:
            yield from orchestrator.run(items)
        finally:
            for name, most in self.sight.most.items():
                self.workers[name] = max(1, most, self.workers.get(name, 1))


def connect(config: RayConfig) -> None:
    """Joins the cluster that is named, or starts one here.

    Raises `VfmError` where there is none at that address.
    """
    # Else Ray says much on stderr that is of no use to anybody here.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    here: dict[str, Any] = {}
    if config.address is None:
        here = {"num_cpus": config.num_cpus, "num_gpus": config.num_gpus}
        if config.object_store_mib is not None:
            here["object_store_memory"] = config.object_store_mib * 2**20
        here["include_dashboard"] = False
    try:
        # Ray puts the driver's current folder first on the workers' path, where a folder called
        # `models` would then be taken for ours.
        with contextlib.chdir(_ROOT):
            ray.init(
                address=config.address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace=f"vfm-{os.getpid()}-{time.time_ns()}",
                **here,
            )
    except (ConnectionError, RayError, ValueError, OSError) as error:
        where = config.address or "this machine"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise VfmError(
            f"ray.address={where}: no Ray cluster can be used there ({reason}): "
            "start one with `ray start --head`, or leave ray.address out"
        ) from error


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """Something that Ray will answer."""

    worker_id: int
    call_id: int | None
    """None for a worker's set-up."""
    results: Any = None
    """The generator of a call; None for one whose answer holds the results."""


@dataclass(kw_only=True)
class _Worker:
    step: str
    actor: Any
    run: Any
    run_small: Any


class RayCluster:
    """The cluster of the engine, on Ray. Results belong to the driver, so they outlive workers."""

    def __init__(self, graph: Graph, config: RayConfig) -> None:
        self._graph = graph
        self._config = config
        self._actor = ray.remote(StageWorker)
        self._workers: dict[int, _Worker] = {}
        self._answers: SimpleQueue[tuple[_Waiting, Future[Any]]] = SimpleQueue()
        """Filled by Ray's own thread, so that nothing here grows with what is in flight."""
        self._largest: dict[str, int] = {}
        """Bytes of each step's largest result of the last call."""
        self._store_bytes = 0.0
        self.processes: dict[int, int] = {}
        """Process numbers of workers that are ready."""

    def now(self) -> float:
        return time.monotonic()

    def nodes(self) -> Sequence[Node]:
        if not ray.is_initialized():
            connect(self._config)
        raw = [node for node in ray.nodes() if node["Alive"]]
        stores = [float(node["Resources"].get("object_store_memory", 0.0)) for node in raw]
        self._store_bytes = sum(stores)
        if self._config.exclude_head:
            raw = [node for node in raw if "node:__internal_head__" not in node["Resources"]]
        return [_node(node) for node in raw]

    def start(self, worker_id: int, step: Step, slot: Slot) -> None:
        needs = slot.needs
        actor = self._actor.options(
            num_cpus=math.floor(needs.cpus * 1e4) / 1e4,
            num_gpus=round(needs.gpus * slot.share, 4),
            memory=needs.memory_bytes or None,
            resources=dict(needs.custom) or None,
            scheduling_strategy=NodeAffinitySchedulingStrategy(slot.node_id, soft=False),
            max_restarts=0,
            max_task_retries=0,
        ).remote(step.stage, self._graph.followers[step.name])
        self._workers[worker_id] = _Worker(
            step=step.name,
            actor=actor,
            run=actor.run.options(num_returns="streaming"),
            run_small=actor.run_small,
        )
        waiting = _Waiting(worker_id=worker_id, call_id=None)
        self._await(actor.setup.remote(), waiting)

    def submit(self, worker_id: int, call_id: int, payloads: Sequence[Any]) -> None:
        worker = self._workers[worker_id]
        if self._largest.get(worker.step, _SMALL_BYTES) < _SMALL_BYTES:
            waiting = _Waiting(worker_id=worker_id, call_id=call_id)
            self._await(worker.run_small.remote(*payloads), waiting)
            return
        results = worker.run.remote(*payloads)
        waiting = _Waiting(worker_id=worker_id, call_id=call_id, results=results)
        self._await(results.completed(), waiting)

    def stop(self, worker_id: int, *, kill: bool = False) -> None:
        actor = self._workers.pop(worker_id).actor
        self.processes.pop(worker_id, None)
        if kill:
            ray.kill(actor)
        else:
            actor.teardown.remote()  # without its handle, the actor ends after this

    def poll(self, timeout_s: float) -> Sequence[Event]:
        events: list[Event] = []
        with contextlib.suppress(Empty):
            while True:
                wait_s = 0.0 if events else timeout_s
                waiting, answer = self._answers.get(block=wait_s > 0, timeout=wait_s or None)
                if waiting.worker_id in self._workers:
                    events.append(self._event(waiting, answer))
        return events

    def _await(self, ref: "ray.ObjectRef", waiting: _Waiting) -> None:
        ref.future().add_done_callback(lambda answer: self._answers.put((waiting, answer)))

    def value(self, payload: Any) -> Any:
        if not isinstance(payload, ray.ObjectRef):
            return payload
        try:
            return ray.get(payload)
        except (ObjectLostError, GetTimeoutError) as error:
            raise PayloadLost from error

    def store_bytes(self) -> float:
        return self._store_bytes

    def _event(self, waiting: _Waiting, answer: "Future[Any]") -> Event:
        worker_id, call_id = waiting.worker_id, waiting.call_id
        try:
            found = answer.result()
            if call_id is None:
                self.processes[worker_id], loaded_s = found
                return Ready(worker_id=worker_id, loaded_s=loaded_s)
            if waiting.results is None:
                reports, results = found
                payloads: Iterator[Any] = iter(results)
            else:
                payloads = waiting.results
                reports = ray.get(next(payloads))
            if reports[-1].refusal:
                return Refused(detail=reports[-1].refusal)
            told = [told.num_bytes for report in reports for told in report.results]
            self._largest[self._workers[worker_id].step] = max(told, default=0)
            outcomes = [_outcome(report, payloads) for report in reports]
            return Done(worker_id=worker_id, call_id=call_id, outcomes=outcomes)
        except RayActorError as error:
            self._gone(worker_id)
            return WorkerLost(worker_id=worker_id, detail=_last_line(error))
        except ObjectLostError:
            assert call_id is not None
            return InputLost(worker_id=worker_id, call_id=call_id)
        except RayTaskError as error:
            if call_id is not None and isinstance(error.cause, ObjectLostError):
                return InputLost(worker_id=worker_id, call_id=call_id)
            if call_id is None:
                self.stop(worker_id, kill=True)
                return SetupFailed(worker_id=worker_id, detail=_last_line(error))
            raise  # StageWorker catches what stages raise: this is a defect of ours

    def _gone(self, worker_id: int) -> None:
        self._workers.pop(worker_id, None)
        self.processes.pop(worker_id, None)


def _outcome(report: Report, results: Iterator[Any]) -> Outcome:
    made = [
        Made(key=told.key, payload=next(results), num_bytes=told.num_bytes, takers=told.takers)
        for told in report.results
    ]
    return Outcome(
        results=made, failures=report.failures, began_s=report.began_s, ended_s=report.ended_s
    )


def _node(raw: Mapping[str, Any]) -> Node:
    """A node of Ray's list."""
    has = raw["Resources"]
    own = {
        key: float(amount)
        for key, amount in has.items()
        if key not in _RAYS_OWN and not key.startswith(("node:", "accelerator_type:"))
    }
    return Node(
        node_id=raw["NodeID"],
        cpus=float(has.get("CPU", 0.0)),
        gpus=int(has.get("GPU", 0)),
        memory_bytes=float(has.get("memory", 0.0)),
        custom=own,
        labels=raw.get("Labels") or {},
    )


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RayTaskError):
        return lines[-1] if lines else repr(error)
    return " ".join(lines)[:300]
