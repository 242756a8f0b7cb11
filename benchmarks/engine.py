"""How near the streaming engine comes to the bound of its resources, beside others."""

import itertools
import json
import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._engine_cases import published
from benchmarks._engine_stages import (
    KINDS,
    NUM_CLIPS,
    Kind,
    Name,
    Sleep,
    is_poisoned,
    results,
    seconds,
    videos,
)
from benchmarks.row import Row
from common.errors import ConfigError
from curation.engine.orchestrator import Orchestrator
from curation.engine.packing import Node
from curation.engine.sight import Sight
from curation.engine.simulate import SimStage, SimulatedCluster
from curation.pipeline import FORGETFUL, Graph
from curation.stage import Failure, failure_to_dict
from curation.tables import write_failed

HELP = """
how near streaming over pools comes to the bound of its resources, beside others

Five stages that sleep as long as real ones work: download, scene detection (a video becomes three
clips), transcode on logical CPUs; embed and caption on logical GPUs, which load a model for 2 s and
4 s first. A stage with a share of a GPU takes in proportion longer. The bound is the work of the
busiest kind of resource over what there is of it. Subjects, each in its own process:

  vfm          the engine, pools sized while it runs; from a started Ray cluster to the last result
  simulation   the same engine on a simulated cluster
  faults       the engine with a random worker killed every 10 s and 1% of the clips poisoned
  batch        stage by stage, each with a full pool whose start is not counted
  ray data     Ray Data, actor pools of 1 to all
  published    two published cases on simulated clusters: 8, 32 and 64 GPUs with one stage 20 times
               faster than the other, and scene detection that starves captioning at one worker

The whole takes 13 minutes, each subject of the first case 2 to 4; scale=0.2 shortens every sleep,
and makes starting up weigh more.

examples:
  vfm bench engine
  vfm bench engine subjects=[vfm,simulation] videos=90 scale=0.5
"""

_STORE_MIB = 200
_CALM_S = 5.0
"""Until the daemons of a fresh Ray cluster are at rest."""


@dataclass(kw_only=True)
class Settings:
    videos: int = 360
    cpus: int = 7
    gpus: int = 10
    scale: float = 1.0
    """Of all sleeps."""
    subjects: list[str] = field(
        default_factory=lambda: ["vfm", "simulation", "faults", "batch", "ray data", "published"]
    )
    start_s: float = 0.75
    """In the simulation, of a worker's process."""
    starts_at_once: int = 0
    """In the simulation, processes that start side by side; 0 is the processors of this machine."""


@dataclass(kw_only=True)
class Record:
    """What was seen of one run. Times are seconds from its start."""

    wall_s: float
    num_results: int
    driver_cpu_s: float = 0.0
    lives: list[tuple[str, int, float, float]] = field(default_factory=list)
    """(stage, worker, ready, gone) of each worker that came up."""
    work: list[tuple[str, int, float, float]] = field(default_factory=list)
    """(stage, worker, begin, end) of each item."""
    queues: int = 0
    """The longest of any step, at any second."""
    failed: int = 0
    lost_workers: int = 0


def measure(settings: Settings) -> Iterator[Row]:
    subjects: dict[str, Callable[[Settings], Record]] = {
        "vfm": _engine,
        "simulation": _simulated,
        "faults": _faults,
        "batch": _batch,
        "ray data": _ray_data,
    }
    names = settings.subjects
    for name in names:
        if name not in (*subjects, "published"):
            raise ConfigError(f"subjects={name} is none of: {', '.join(subjects)}, published")
    case = f"{settings.videos} videos, {settings.gpus} GPUs, {settings.cpus} CPUs"
    bound_s = bound(settings)
    yield _row(case, "bound", "wall", bound_s, "s")
    for name in names:
        if name == "published":
            yield from itertools.starmap(_row, published())
            continue
        if name == "ray data" and not _has_ray_data():
            yield _row(case, name, "wall", None, "ray[data] is not installed")
            continue
        record = _apart(subjects[name], settings)
        yield _row(case, name, "wall", record.wall_s, "s")
        yield _row(case, name, "wall / bound", record.wall_s / bound_s, "1")
        yield _row(case, name, "results", record.num_results, "1")
        yield _row(case, name, "driver", 100 * record.driver_cpu_s / record.wall_s, "% of a core")
        if record.lives:
            for metric, value, unit in figures(record, bound_s):
                yield _row(case, name, metric, value, unit)
        if name == "faults":
            yield _row(case, name, "failed", record.failed, "1")
            yield _row(case, name, "workers lost", record.lost_workers, "1")


def bound(settings: Settings) -> float:
    """The work of each kind of resource over its amount; the larger of the two."""
    work = {True: 0.0, False: 0.0}
    for video in videos(settings.videos):
        clips = results(KINDS[1], video)
        for kind in KINDS:
            items = [video] if kind.name in ("download", "scene") else clips
            work[kind.on_gpu] += sum(seconds(kind, item.label) for item in items)
    return settings.scale * max(work[True] / settings.gpus, work[False] / settings.cpus)


def figures(record: Record, bound_s: float) -> Iterator[tuple[str, float, str]]:
    """What a run of the engine shows beside its wall."""
    gpu = [kind.name for kind in KINDS if kind.on_gpu]
    lives = [life for life in record.lives if life[0] in gpu]
    loaded_s = max(min(ready for s, _, ready, _ in lives if s == name) for name in gpu)
    yield "last model's first load", loaded_s, "s"
    yield "from that load / bound", (record.wall_s - loaded_s) / bound_s, "1"
    drain_s = max(end for s, _, _, end in record.work if s == gpu[-2])
    middle_s = (loaded_s + drain_s) / 2
    changes = [at for _, _, ready, gone in lives for at in (ready, gone) if at < middle_s]
    balance_s = max(changes)
    yield "balance after that load", max(0.0, balance_s - loaded_s), "s"

    def within(begin: float, end: float) -> float:
        return max(0.0, min(end, drain_s) - max(begin, balance_s))

    busy_s = sum(within(begin, end) for s, _, begin, end in record.work if s in gpu)
    there_s = sum(within(ready, gone) for _, _, ready, gone in lives)
    if there_s > 0:
        yield "workers on GPUs busy, balance to drain", 100 * busy_s / there_s, "%"
    for kind in KINDS:
        there = [ready <= middle_s < gone for s, _, ready, gone in record.lives if s == kind.name]
        yield f"{kind.name} workers", sum(there), "1"
    yield "longest queue", record.queues, "1"


def stages(settings: Settings, *, poison: float = 0.0) -> list[Sleep]:
    return [Sleep(kind, scale=settings.scale, poison=poison) for kind in KINDS]


class Watch(Sight):
    """Keeps the times of all work and of all workers."""

    def __init__(self, began_s: float) -> None:
        super().__init__(began_s=began_s)
        self.clock_s = began_s
        """When the run began by the cluster's clock."""
        self.work_s = time.time()
        """The same by the clock of the workers."""
        self._work: list[tuple[str, int, float, float]] = []
        self._ready: dict[int, tuple[str, float]] = {}
        self._lives: list[tuple[str, int, float, float]] = []

    def worked(self, step: str, worker_id: int, began_s: float, ended_s: float) -> None:
        self._work.append((step, worker_id, began_s - self.work_s, ended_s - self.work_s))

    def came(self, step: str, worker_id: int, now_s: float) -> None:
        self._ready[worker_id] = (step, now_s - self.clock_s)

    def went(self, step: str, worker_id: int, now_s: float) -> None:
        if worker_id in self._ready:
            ready_s = self._ready.pop(worker_id)[1]
            self._lives.append((step, worker_id, ready_s, now_s - self.clock_s))

    def record(self, wall_s: float, num_results: int, driver_cpu_s: float) -> Record:
        told = [line["decision"] for line in self.decisions]
        return Record(
            wall_s=wall_s,
            num_results=num_results,
            driver_cpu_s=driver_cpu_s,
            lives=self._lives,
            work=self._work,
            queues=max(s["queue"] for sample in self.samples for s in sample["steps"].values()),
            lost_workers=sum(what.endswith("a worker was lost") for what in told),
        )


def _started(settings: Settings) -> Any:
    """The settings of a Ray cluster that is up, its own processes no longer busy with starting."""
    from curation.executors.config import RayConfig
    from curation.executors.ray import connect

    config = RayConfig(num_cpus=settings.cpus, num_gpus=settings.gpus, object_store_mib=_STORE_MIB)
    connect(config)
    time.sleep(_CALM_S)
    return config


def _engine(settings: Settings, *, poison: float = 0.0, kill_every_s: float = 0.0) -> Record:
    import ray

    from curation.executors.ray import RayCluster

    config = _started(settings)
    graph = Graph.chain(stages(settings, poison=poison))
    cluster = RayCluster(graph, config)
    watch = Watch(cluster.now())
    done = threading.Event()
    if kill_every_s:
        killer = threading.Thread(target=_kill_now_and_then, args=(cluster, kill_every_s, done))
        killer.start()
    cpu_s = time.process_time()
    orchestrator = Orchestrator(graph, cluster, FORGETFUL, total=settings.videos, sight=watch)
    found = list(orchestrator.run(videos(settings.videos)))
    wall_s = cluster.now() - watch.clock_s
    cpu_s = time.process_time() - cpu_s
    done.set()
    failures = [r for r in found if isinstance(r, Failure)]
    _check_failed(settings, failures, poison)
    labels = [r.label for r in found]
    assert len(labels) == len(set(labels)) == NUM_CLIPS * settings.videos, "lost or doubled"
    record = watch.record(wall_s, len(found) - len(failures), cpu_s)
    record.failed = len(failures)
    ray.shutdown()
    return record


def _check_failed(settings: Settings, failures: Sequence[Failure], poison: float) -> None:
    """Every poisoned clip has its line in a `failed.jsonl`, and nothing else has."""
    clips = [clip.label for v in videos(settings.videos) for clip in results(KINDS[1], v)]
    poisoned = sorted(label for label in clips if is_poisoned(label, poison))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "failed.jsonl"
        rows = [failure_to_dict(f) | {"id": f.label, "source": f.content_id} for f in failures]
        write_failed(path, rows)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["label"] for line in lines) == poisoned, "not what was poisoned"
    assert all("poisoned" in line["detail"] for line in lines)


def _faults(settings: Settings) -> Record:
    return _engine(settings, poison=0.01, kill_every_s=10 * settings.scale)


def _kill_now_and_then(cluster: Any, every_s: float, done: threading.Event) -> None:
    chance = random.Random(0)
    while not done.wait(every_s):
        alive = sorted(cluster.processes.values())
        if alive:
            os.kill(chance.choice(alive), signal.SIGKILL)


def _simulated(settings: Settings) -> Record:
    def service_of(kind: Kind) -> Callable[[Any], float]:
        return lambda item: seconds(kind, item.label) * settings.scale

    simulated = []
    for real in stages(settings):
        stage = SimStage(
            real.name,
            service_s=service_of(real.kind),
            fan_out=lambda item, kind=real.kind: NUM_CLIPS if kind.name == "scene" else 1,
            load_s=real.setup_s,
        )
        stage.resources = real.resources
        simulated.append(stage)
    graph = Graph.chain(simulated)
    node = Node(node_id="one", cpus=settings.cpus, gpus=settings.gpus)
    cluster = SimulatedCluster(
        [node],
        graph.followers,
        start_s=settings.start_s,
        starts_at_once=settings.starts_at_once or os.cpu_count(),
    )
    watch = Watch(cluster.now())
    watch.work_s = 0.0
    cpu_s = time.process_time()
    orchestrator = Orchestrator(graph, cluster, FORGETFUL, total=settings.videos, sight=watch)
    found = list(orchestrator.run(videos(settings.videos)))
    return watch.record(cluster.now(), len(found), time.process_time() - cpu_s)


class _Actor:
    """One stage of the batch."""

    def __init__(self, stage: Sleep) -> None:
        self._stage = stage
        stage.setup()

    def ready(self) -> None:
        pass

    def run(self, item: Name) -> Sequence[Any]:
        return self._stage.process(item)


def _batch(settings: Settings) -> Record:
    import ray
    from ray.util import ActorPool

    _started(settings)
    items: list[Name] = videos(settings.videos)
    wall_s = cpu_s = 0.0
    for stage in stages(settings):
        needs = stage.resources
        size = settings.gpus if needs.gpus else settings.cpus
        actor = ray.remote(_Actor).options(num_cpus=needs.cpus, num_gpus=needs.gpus)
        actors = [actor.remote(stage) for _ in range(size)]
        ray.get([a.ready.remote() for a in actors])
        began, cpu = time.time(), time.process_time()
        made = ActorPool(actors).map_unordered(lambda a, item: a.run.remote(item), items)
        items = [result for of in made for result in of]
        wall_s += time.time() - began
        cpu_s += time.process_time() - cpu
        for a in actors:
            ray.kill(a)  # pyright: ignore[reportArgumentType]
    ray.shutdown()
    return Record(wall_s=wall_s, num_results=len(items), driver_cpu_s=cpu_s)


class _Rows:
    """One stage as Ray Data calls it: a row to rows."""

    def __init__(self, stage: Sleep) -> None:
        self._stage = stage
        stage.setup()

    def __call__(self, row: dict[str, str]) -> list[dict[str, str]]:
        found = self._stage.process(Name(content_id=row["id"], span=row["span"]))
        return [{"id": r.content_id, "span": r.span} for r in found]


def _has_ray_data() -> bool:
    try:
        import pandas
        import ray.data
    except ImportError:
        return False
    return bool(pandas and ray.data)


def _ray_data(settings: Settings) -> Record:
    import ray
    import ray.data

    _started(settings)
    ray.data.DataContext.get_current().enable_progress_bars = False
    began, cpu_s = time.time(), time.process_time()
    items = [{"id": v.content_id, "span": v.span} for v in videos(settings.videos)]
    data = ray.data.from_items(items, override_num_blocks=len(items))
    for stage in stages(settings):
        needs = stage.resources
        size = settings.gpus if needs.gpus else settings.cpus
        data = data.flat_map(
            _Rows,
            fn_constructor_args=(stage,),
            num_cpus=needs.cpus,
            num_gpus=needs.gpus or None,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=size),
        )
        if stage.name == "scene":
            data = data.repartition(target_num_rows_per_block=1)
    num_results = sum(len(batch["id"]) for batch in data.iter_batches(batch_size=None))
    wall_s = time.time() - began
    cpu_s = time.process_time() - cpu_s
    ray.shutdown()
    return Record(wall_s=wall_s, num_results=num_results, driver_cpu_s=cpu_s)


def _apart(subject: Callable[[Settings], Record], settings: Settings) -> Record:
    """A subject in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(subject, (settings,))


def _row(case: str, subject: str, metric: str, value: float | None, unit: str) -> Row:
    return Row(
        benchmark="engine", case=case, subject=subject, metric=metric, value=value, unit=unit
    )
