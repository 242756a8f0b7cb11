"""The executor in this process: no service, no copy, one item at a time through all stages.

Decoder and encoder threads use the other cores meanwhile.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from curation.executors.attempt import attempt
from curation.pipeline import Graph, Memory, Step, takers
from curation.stage import Failure, Item, Stage


class LocalExecutor:
    """Streams items depth first: an item reaches the last stage before the next one starts.

    Ctrl-C ends the run between two durable records, so the same command continues it.
    """

    workers: Mapping[str, int] = MappingProxyType({})
    sight = None

    def run(
        self,
        graph: Graph,
        items: Iterable[Item],
        memory: Memory,
        *,
        total: int | None = None,
    ) -> Iterator[Any | Failure]:
        with contextlib.ExitStack() as stack:
            for step in graph.steps.values():
                step.stage.setup()
                stack.callback(step.stage.teardown)
            for item in items:
                yield from self._onward(graph, graph.first, item, memory)

    def _onward(
        self, graph: Graph, followers: Sequence[Step], item: Any, memory: Memory
    ) -> Iterator[Any | Failure]:
        names = () if isinstance(item, Failure) else takers(followers, item)
        if not names:
            yield item
        for name in names:
            for result in self._results(graph.steps[name].stage, item, memory):
                yield from self._onward(graph, graph.followers[name], result, memory)

    def _results(self, stage: Stage[Any, Any], item: Item, memory: Memory) -> Sequence[Any]:
        known = memory.recall(stage, item)
        if known is not None:
            return known
        began = time.perf_counter()
        results = attempt(stage, item)
        memory.record(stage, item, results, time.perf_counter() - began)
        return results
