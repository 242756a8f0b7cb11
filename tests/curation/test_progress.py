"""What a terminal shows of a run (simulated engine; tier: wiring, no process group)."""

import io
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console

from curation.engine.orchestrator import Orchestrator
from curation.engine.sight import Sight
from curation.engine.simulate import SimulatedCluster
from curation.executors.local import LocalExecutor
from curation.pipeline import FORGETFUL, Graph, Memory
from curation.progress import progress_on, sentences, stage_table
from curation.stage import Item
from tests.curation.engine.pipelines import ONE, items, reference


def seen_of(count: int, results: int) -> Sight:
    """What is seen of a simulated run once so many results are there."""
    graph = reference()
    cluster = SimulatedCluster(ONE, graph.followers)
    orchestrator = Orchestrator(graph, cluster, FORGETFUL, total=count)
    run = orchestrator.run(items(count))
    for _ in range(results):
        next(run)
    return orchestrator.sight


class Watched:
    """An executor with an engine."""

    def __init__(self, sight: Sight) -> None:
        self.workers: dict[str, int] = {}
        self.sight = sight

    def run(
        self, graph: Graph, items: Iterable[Item], memory: Memory, *, total: int | None = None
    ) -> Iterator[Any]:
        raise NotImplementedError


def terminal(**more: Any) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=120, **more), file


def test_the_table_holds_every_stage_with_its_rates() -> None:
    console, file = terminal()
    console.print(stage_table(seen_of(120, 200)))
    heads, *rows = file.getvalue().splitlines()
    assert heads.split()[:4] == ["stage", "busy", "waiting", "starting"]
    assert [row.split()[0] for row in rows] == list(reference().order)
    caption = rows[-1].split()
    assert caption[1] == "9"
    assert 0.9 < float(caption[-2]) < 1.1, "captions a second of one worker"
    assert 2.7 < float(caption[-1]) < 3.3, "videos a second of nine"


def test_the_time_left_is_believable() -> None:
    """Half way through, what is said is what it then takes."""
    whole = seen_of(240, 720).samples[-1]["at_s"]
    half = seen_of(240, 360)
    said = half.samples[-1]["left_s"]
    assert abs(said - (whole - half.samples[-1]["at_s"])) < 0.1 * whole
    first, second = sentences(half)
    assert first.startswith("about 4")
    assert "GPUs 9" in first or "GPUs 100%" in first
    assert second == half.bottleneck() != ""


def test_a_terminal_sees_bar_and_table_and_a_file_nothing() -> None:
    sight = seen_of(60, 90)
    console, file = terminal(force_terminal=True)
    with progress_on(console, Watched(sight)) as progress:
        progress.add_task("score", total=60)
    assert "score" in file.getvalue()
    assert "transcode" in file.getvalue()
    console, file = terminal(force_terminal=True)
    with progress_on(console, LocalExecutor()) as progress:
        progress.add_task("score", total=60)
    assert "left" in file.getvalue()
    console, file = terminal()
    with progress_on(console, Watched(sight)) as progress:
        progress.add_task("score", total=60)
    assert file.getvalue() == ""
