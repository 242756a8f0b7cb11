"""The executor on Ray: a pool of actors per stage, sized and fed by `curation.engine`.

Ray schedules the actors, counts their resources, moves what they make from node to node, and says
when one is gone. How many there are and which item goes where is decided in the orchestrator.
"""

import contextlib
import logging
import math
import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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
from curation.engine.orchestrator import Orchestrator, Pace
from curation.engine.packing import Node, Slot
from curation.engine.sight import Sight
from curation.executors.config import RayConfig
from curation.executors.worker import Report, StageWorker
from curation.pipeline import Graph, Memory, Step
from curation.stage import Failure, Item

_ROOT = Path(__file__).resolve().parents[2]
"""The folder from which our packages are imported, here and in the workers."""
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
        self.sight = Sight()
        """Of the current run."""
        self.cluster: RayCluster | None = None

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
        self.sight = Sight(self._series, began_s=self._began_s)
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
        yield from orchestrator.run(items)


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


@dataclass(kw_only=True)
class _Waiting:
    """Something that Ray will answer."""

    worker_id: int
    call_id: int | None
    """None for a worker's set-up."""
    results: Any = None
    """The generator of a call."""
    since_s: float


class RayCluster:
    """The cluster of the engine, on Ray. Results belong to the driver, so they outlive workers."""

    def __init__(self, graph: Graph, config: RayConfig) -> None:
        self._graph = graph
        self._config = config
        self._actor = ray.remote(StageWorker)
        self._actors: dict[int, Any] = {}
        self._waiting: dict[ray.ObjectRef, _Waiting] = {}
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
        self._actors[worker_id] = actor
        waiting = _Waiting(worker_id=worker_id, call_id=None, since_s=self.now())
        self._waiting[actor.setup.remote()] = waiting

    def submit(self, worker_id: int, call_id: int, payloads: Sequence[Any]) -> None:
        method = self._actors[worker_id].run.options(num_returns="streaming")
        results = method.remote(*payloads)
        self._waiting[results.completed()] = _Waiting(
            worker_id=worker_id, call_id=call_id, results=results, since_s=self.now()
        )

    def stop(self, worker_id: int, *, kill: bool = False) -> None:
        actor = self._actors.pop(worker_id)
        self.processes.pop(worker_id, None)
        for ref in [r for r, w in self._waiting.items() if w.worker_id == worker_id]:
            del self._waiting[ref]
        if kill:
            ray.kill(actor)
        else:
            actor.teardown.remote()  # without its handle, the actor ends after this

    def poll(self, timeout_s: float) -> Sequence[Event]:
        if not self._waiting:
            time.sleep(timeout_s)
            return []
        refs = list(self._waiting)
        ready, _ = ray.wait(refs, timeout=timeout_s, fetch_local=False)
        if ready:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        events = []
        for ref in ready:
            waiting = self._waiting.pop(ref, None)
            if waiting is not None:
                events.append(self._event(ref, waiting))
        return events

    def value(self, payload: Any) -> Any:
        if not isinstance(payload, ray.ObjectRef):
            return payload
        try:
            return ray.get(payload)
        except (ObjectLostError, GetTimeoutError) as error:
            raise PayloadLost from error

    def store_bytes(self) -> float:
        return self._store_bytes

    def _event(self, ref: "ray.ObjectRef", waiting: _Waiting) -> Event:
        worker_id, call_id = waiting.worker_id, waiting.call_id
        try:
            if call_id is None:
                self.processes[worker_id] = ray.get(ref)
                return Ready(worker_id=worker_id, waited_s=self.now() - waiting.since_s)
            ray.get(ref)
            reports: list[Report] = ray.get(next(waiting.results))
            if reports[-1].refusal:
                return Refused(detail=reports[-1].refusal)
            outcomes = [_outcome(report, waiting.results) for report in reports]
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
        self._actors.pop(worker_id, None)
        self.processes.pop(worker_id, None)
        for other in [r for r, w in self._waiting.items() if w.worker_id == worker_id]:
            del self._waiting[other]


def _outcome(report: Report, results: Generator[Any, None, None]) -> Outcome:
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
