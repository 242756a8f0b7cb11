"""What a curation will take: a sample is curated here, and the rest is reckoned from it."""

import math
import multiprocessing
import resource
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common.errors import ConfigError, VfmError
from curation.config import CurateConfig
from curation.engine.balance import Demand, solve
from curation.engine.packing import Node
from curation.limits import need
from curation.sources import SourceFile, scan
from curation.stage import Resources

NODES_PER_DRIVER = 64
"""Beyond these, one orchestrator is asked to look after too much."""


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """What is to be curated, and on what."""

    input: str
    """A folder of videos, searched to any depth."""
    sample: int = 4
    """How many of its videos are curated to know; they are spread over the sizes there are."""
    total_tib: float | None = None
    """Size of the whole, where the input is a part of it; null is the input itself."""
    nodes: int = 1
    cpus: float = 2.0
    """Of each node."""
    gpus: int = 0
    memory_gib: float | None = None
    """Of each node; null does not look at memory."""
    caption_s: float | None = None
    """Seconds of one GPU for one clip of a captioning model; null plans for none."""

    def __post_init__(self) -> None:
        need(self.sample >= 1, "sample", self.sample, "at least 1")
        need(self.nodes >= 1, "nodes", self.nodes, "at least 1")
        need(self.cpus > 0, "cpus", self.cpus, "above 0")
        need(self.gpus >= 0, "gpus", self.gpus, "not negative")
        for key in ("total_tib", "memory_gib", "caption_s"):
            value = getattr(self, key)
            need(value is None or value > 0, key, value, "above 0")
        if self.caption_s is not None:
            need(self.gpus > 0, "gpus", self.gpus, "at least 1, since caption_s plans for them")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What the sample took."""

    num_bytes: int
    num_videos: int
    video_s: float
    num_clips: int
    out_bytes: int
    stage_s: dict[str, float]
    """Seconds of one worker, by stage."""
    peak_bytes: int
    """Of the process that did all stages."""


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    stage: str
    needs: Resources
    work_s: float
    workers: int
    wall_s: float


@dataclass(frozen=True, kw_only=True)
class CuratePlan:
    """The whole, reckoned from the sample."""

    num_bytes: float
    num_videos: float
    video_s: float
    num_clips: float
    out_bytes: float
    stages: list[StagePlan]
    wall_s: float
    workers_per_node: int
    """By memory and processors, of the stage with the most."""
    peak_bytes: int
    drivers: int


def plan_curation(config: PlanConfig) -> CuratePlan:
    """Curates the sample in a process of its own and in a temporary folder, then reckons.

    Raises:
        VfmError: for an input without videos, a sample of which nothing can be used, or a node too
            small for one worker.
    """
    folder = Path(config.input).absolute()
    files = scan(folder).files
    if not files:
        raise ConfigError(f"input={config.input} holds no video")
    sizes = {file.path: Path(file.path).stat().st_size for file in files}
    chosen = spread(files, sizes, config.sample)
    return reckon(config, probe(chosen), num_bytes=sum(sizes.values()))


def spread(files: Sequence[SourceFile], sizes: dict[str, int], count: int) -> list[SourceFile]:
    """Files at even distances in the order of their sizes."""
    ordered = sorted(files, key=lambda file: (sizes[file.path], file.path))
    count = min(count, len(ordered))
    return [ordered[int((k + 0.5) * len(ordered) / count)] for k in range(count)]


def probe(files: Sequence[SourceFile]) -> Probe:
    """Curates these files, as one worker would."""
    with tempfile.TemporaryDirectory(prefix="vfm-plan-") as scratch:
        source = Path(scratch) / "in"
        source.mkdir()
        for number, file in enumerate(files):
            (source / f"{number}{Path(file.path).suffix}").symlink_to(file.path)
        output = Path(scratch) / "out"
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            summary, peak_bytes = pool.apply(_curate, (str(source), str(output)))
        shards = output / "shards"
        out_bytes = sum(p.stat().st_size for p in shards.rglob("*") if p.is_file())
        shutil.rmtree(output)
    if not summary["seconds_in"]:
        names = ", ".join(Path(file.path).name for file in files[:4])
        raise VfmError(f"none of the sampled videos can be used ({names}): raise sample")
    return Probe(
        num_bytes=sum(Path(file.path).stat().st_size for file in files),
        num_videos=len(files),
        video_s=summary["seconds_in"],
        num_clips=summary["clips_in"],
        out_bytes=out_bytes,
        stage_s={name: stage["wall_s"] for name, stage in summary["stages"].items()},
        peak_bytes=peak_bytes,
    )


def _curate(source: str, output: str) -> tuple[dict[str, Any], int]:
    from curation.run import curate

    result = curate(CurateConfig(input=source, output=output))
    return result.summary, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reckon(config: PlanConfig, seen: Probe, *, num_bytes: int) -> CuratePlan:
    """Scales by bytes, and gives each step of the curation the whole cluster in its turn."""
    whole = num_bytes if config.total_tib is None else config.total_tib * 2**40
    scale = whole / seen.num_bytes
    memory = math.inf if config.memory_gib is None else config.memory_gib * 2**30
    nodes = [
        Node(node_id=f"n{k}", cpus=config.cpus, gpus=config.gpus, memory_bytes=memory)
        for k in range(config.nodes)
    ]
    plans = []
    for name, work_s in seen.stage_s.items():
        needs = _needs(name, seen.peak_bytes)
        plans.append(_stage(name, needs, work_s * scale, nodes))
    if config.caption_s is not None:
        work_s = config.caption_s * seen.num_clips * scale
        plans.append(_stage("caption", Resources(cpus=0.0, gpus=1.0), work_s, nodes))
    return CuratePlan(
        num_bytes=whole,
        num_videos=seen.num_videos * scale,
        video_s=seen.video_s * scale,
        num_clips=seen.num_clips * scale,
        out_bytes=seen.out_bytes * scale,
        stages=plans,
        wall_s=sum(stage.wall_s for stage in plans),
        workers_per_node=max(math.ceil(stage.workers / config.nodes) for stage in plans),
        peak_bytes=seen.peak_bytes,
        drivers=math.ceil(config.nodes / NODES_PER_DRIVER),
    )


def _needs(stage: str, peak_bytes: int) -> Resources:
    """What a worker of a stage declares, with the memory that the probe has seen."""
    config = CurateConfig(input="", output="")
    cpus = {"analyse": 2.0, "transcode": float(config.transcode.threads)}
    return Resources(cpus=cpus.get(stage, 1.0), memory_bytes=peak_bytes)


def _stage(name: str, needs: Resources, work_s: float, nodes: Sequence[Node]) -> StagePlan:
    found = solve([Demand(name=name, needs=needs, work_s=max(work_s, 1e-3))], nodes)
    assert found.finish_s is not None
    return StagePlan(
        stage=name,
        needs=needs,
        work_s=work_s,
        workers=len(found.shares[name]),
        wall_s=found.finish_s,
    )


def print_plan(console: Console, config: PlanConfig, made: CuratePlan) -> None:
    """The plan as a table, and what it comes to in sentences."""
    table = Table("stage", "work", "workers", "time", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for stage in made.stages:
        table.add_row(stage.stage, told(stage.work_s), f"{stage.workers}", told(stage.wall_s))
    table.add_row("all", "", "", told(made.wall_s))
    console.print(table)
    hours = made.video_s / 3600
    lines = [
        f"in: {made.num_bytes / 2**40:.3g} TiB, {hours:.3g} hours of video; "
        f"out: {made.out_bytes / 2**40:.3g} TiB in shards, {made.num_clips:.3g} clips scored",
        f"memory: {made.peak_bytes / 2**30:.2f} GiB a worker, {made.workers_per_node} workers on "
        "a node",
        f"an hour of video takes {made.wall_s / hours:.3g} s",
    ]
    if config.gpus:
        lines.append(f"{made.wall_s * config.nodes * config.gpus / hours:.3g} s of each GPU for it")
    if made.drivers > 1:
        lines.append(
            f"{config.nodes} nodes are too many for one driver: split the input over "
            f"{made.drivers} runs, each with its own output and up to {NODES_PER_DRIVER} nodes"
        )
    lines.append("reckoned by bytes from the sample; more of it makes the figures surer: sample=20")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def told(seconds: float) -> str:
    """A length of time in the unit that fits it."""
    for unit, length in (("years", 365 * 86400), ("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
