"""Published cases of balance, run on the simulator.

The first is NVIDIA's: one stage on GPUs is 20 times faster than another, on 8, 32 and 64 GPUs. The
second is Oracle's: scene detection with one worker starves captioning on eight GPUs, with eight it
does not; seconds per video follow from the article's rates (50 videos per GPU and hour at 12 % of
the GPUs busy; transcoding at 0.14 videos a second and worker), cores per worker are assumed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from curation.engine.orchestrator import Orchestrator
from curation.engine.packing import Node
from curation.engine.sight import Sight
from curation.engine.simulate import SimItem, SimStage, SimulatedCluster
from curation.pipeline import FORGETFUL, Graph
from curation.stage import Resources

_LOAD_S = 4.0


def published() -> Iterator[tuple[str, str, str, float, str]]:
    """(case, subject, metric, value, unit) of each."""
    for gpus in (8, 32, 64):
        case = f"{gpus} GPUs, one stage 20 times faster"
        graph = Graph.chain(
            [
                _stage("read", 0.005, Resources(cpus=1)),
                _stage("fast", 0.05, Resources(cpus=0, gpus=1), _LOAD_S),
                _stage("slow", 1.0, Resources(cpus=0, gpus=1), _LOAD_S),
            ]
        )
        nodes = [Node(node_id=f"n{i}", cpus=16, gpus=8) for i in range(gpus // 8)]
        seen, _ = _run(graph, nodes, 120 * gpus)
        for name in ("fast", "slow"):
            yield case, "simulation", f"{name} workers", seen.middle(name), "1"
        yield case, "simulation", "GPUs busy", 100 * seen.busy("fast", "slow"), "%"
    node = Node(node_id="n", cpus=33, gpus=8)
    for workers in (1, 8, None):
        graph = Graph.chain(
            [
                _stage("read", 0.1, Resources(cpus=1)),
                _stage("scene", 9.0, Resources(cpus=1)),
                _stage("transcode", 1 / 0.14, Resources(cpus=8)),
                _stage("caption", 8.64, Resources(cpus=0, gpus=1), _LOAD_S),
            ]
        )
        steps = [
            replace(s, workers={"scene": workers, "caption": 8}.get(s.name))
            for s in graph.steps.values()
        ]
        count = 600
        seen, wall_s = _run(Graph(steps), [node], count)
        case = "scene detection before captioning on 8 GPUs"
        subject = "balanced" if workers is None else f"scene workers: {workers}"
        yield case, subject, "videos per GPU and hour", 3600 * count / wall_s / 8, "1"
        yield case, subject, "GPUs busy", 100 * seen.busy("caption"), "%"
        yield case, subject, "scene workers", seen.middle("scene"), "1"


class _Seen(Sight):
    """What was done in the middle of a run, from 40 to 80 % of its samples, where pools rest."""

    def __init__(self) -> None:
        super().__init__()
        self._work: list[tuple[str, float, float]] = []

    def worked(self, step: str, worker_id: int, began_s: float, ended_s: float) -> None:
        self._work.append((step, began_s, ended_s))

    def _sample(self, share: float) -> dict[str, Any]:
        return self.samples[int(len(self.samples) * share)]

    def middle(self, step: str) -> float:
        """Workers."""
        seen = self._sample(0.4)["steps"][step]
        return seen["busy"] + seen["waiting"]

    def busy(self, *steps: str) -> float:
        """The share of these steps' workers that is at work."""
        begin, end = self._sample(0.4)["at_s"], self._sample(0.8)["at_s"]
        work = [max(0.0, min(b, end) - max(a, begin)) for s, a, b in self._work if s in steps]
        return sum(work) / (end - begin) / sum(self.middle(step) for step in steps)


def _stage(name: str, mean_s: float, needs: Resources, load_s: float = 0.0) -> SimStage:
    stage = SimStage(name, service_s=lambda item: mean_s, load_s=load_s)
    stage.resources = needs
    return stage


def _run(graph: Graph, nodes: Sequence[Node], count: int) -> tuple[_Seen, float]:
    seen = _Seen()
    cluster = SimulatedCluster(nodes, graph.followers)
    items = [SimItem(content_id=f"v{number}") for number in range(count)]
    list(Orchestrator(graph, cluster, FORGETFUL, total=count, sight=seen).run(items))
    return seen, cluster.now()
