"""Simulated stages and runs for tests of the engine."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from curation.engine.crew import Pace
from curation.engine.orchestrator import Orchestrator
from curation.engine.packing import Node
from curation.engine.simulate import SimItem, SimStage, SimulatedCluster
from curation.pipeline import FORGETFUL, Graph, Memory
from curation.stage import Failure, Item, Resources


def times(name: str, mean_s: float, spread: float = 0.3) -> Callable[[Item], float]:
    """Uniform about a mean, the same for an item each time."""

    def service_s(item: Item) -> float:
        chance = random.Random(f"{name} {item.content_id} {item.span}").random()
        return mean_s * (1 + spread * (2 * chance - 1))

    return service_s


def stage(
    name: str,
    mean_s: float,
    *,
    cpus: float = 0.0,
    gpus: float = 0.0,
    min_gpus: float | None = None,
    fan_out: int = 1,
    load_s: float = 0.0,
    **more: Any,
) -> SimStage:
    made = SimStage(
        name, service_s=times(name, mean_s), fan_out=lambda item: fan_out, load_s=load_s
    )
    made.resources = Resources(cpus=cpus, gpus=gpus, min_gpus=min_gpus)
    for key, value in more.items():
        setattr(made, key, value)
    return made


def items(count: int) -> list[SimItem]:
    return [SimItem(content_id=f"v{number}") for number in range(count)]


ONE = [Node(node_id="n", cpus=7, gpus=10)]


def reference() -> Graph:
    """The pipeline of the benchmark: 119 s of work for 10 GPUs, less for 7 processors."""
    return Graph.chain(
        [
            stage("download", 0.05, cpus=1.0),
            stage("scene", 0.4, cpus=1.0, fan_out=3),
            stage("transcode", 0.3, cpus=1.0),
            stage("embed", 0.1, gpus=1.0, min_gpus=0.1, load_s=2.0),
            stage("caption", 1.0, gpus=1.0, load_s=4.0),
        ]
    )


class Run:
    """A simulated run with everything that came of it."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        count: int,
        *,
        memory: Memory = FORGETFUL,
        pace: Pace | None = None,
        priors: Mapping[str, float] | None = None,
        **cluster: Any,
    ) -> None:
        self.cluster = SimulatedCluster(nodes, graph.followers, **cluster)
        self.orchestrator = Orchestrator(
            graph, self.cluster, memory, total=count, pace=pace, priors=priors
        )
        self.results = list(self.orchestrator.run(items(count)))
        self.wall_s = self.cluster.now()
        self.failures = [r for r in self.results if isinstance(r, Failure)]
        self.labels = sorted(r.label for r in self.results if not isinstance(r, Failure))

    def sizes(self, at_s: float) -> dict[str, int]:
        """Workers by step at a time."""
        sample = next(s for s in self.orchestrator.sight.samples if s["at_s"] >= at_s)
        return {
            name: step["busy"] + step["waiting"] + step["starting"]
            for name, step in sample["steps"].items()
        }
