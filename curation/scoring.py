"""The first step over the sources of a folder: every clip and every score, from the ledger where it
knows them, else by one decode of the source."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console

from common.errors import MediaError
from curation.inventory import Inventory
from curation.ledger import KnownSource
from curation.memory import Work
from curation.pipeline import Executor, Graph
from curation.progress import progress_on
from curation.sources import SourceFile
from curation.stage import Failure, failure_of
from curation.stages.analyse import Analyse, Analysis


class Scoring:
    """One pass; `failures` fills while it runs."""

    def __init__(
        self,
        analyse: Analyse,
        inventory: Inventory,
        work: Work,
        executor: Executor,
        console: Console,
    ) -> None:
        self._analyse = analyse
        self._inventory = inventory
        self._work = work
        self._executor = executor
        self._console = console
        self.failures: list[Failure] = []

    def __call__(self, sources: Sequence[KnownSource]) -> dict[str, Analysis]:
        """By id of the video; those that failed are missing."""
        analyses: dict[str, Analysis] = {}
        with progress_on(self._console, self._executor) as progress:
            task = progress.add_task("score", total=len(sources))

            def keep(result: Analysis | Failure) -> None:
                if isinstance(result, Failure):
                    self.failures.append(result)
                else:
                    analyses[result.video_id] = result
                progress.advance(task)

            items = self._to_analyse(sources, keep)
            graph = Graph.chain([self._analyse])
            for result in self._executor.run(graph, items, self._work.memory, total=len(sources)):
                keep(result)
        return analyses

    def _to_analyse(
        self, sources: Sequence[KnownSource], keep: Callable[[Analysis | Failure], None]
    ) -> Iterator[SourceFile]:
        """What is not known yet; the rest is kept. That comes last, so that the work begins at once
        however much is known."""
        analysed = self._work.analysed(self._analyse)
        of_id = {source.video_id: source for source in sources}
        for source in sources:
            if source.video_id not in analysed:
                yield from self._located(source, keep)
        known = [video_id for video_id in of_id if video_id in analysed]
        for video_id, result in self._work.analyses(self._analyse, known):
            if result is None:
                yield from self._located(of_id[video_id], keep)
            else:
                keep(result)

    def _located(
        self, source: KnownSource, keep: Callable[[Analysis | Failure], None]
    ) -> Iterator[SourceFile]:
        item = SourceFile(source=source.source, path=source.path, content_id=source.video_id)
        try:
            located = self._inventory.locate(source)
            earlier = self._work.earlier(self._analyse, located)
            yield dataclasses.replace(located, known=earlier)
        except MediaError as error:
            keep(failure_of(item, self._analyse.name, 1, error))
