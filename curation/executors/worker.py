"""What runs in a remote worker: one stage, loaded once, and a report beside its results."""

import os
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import VfmError
from curation.engine.cluster import Key, key_of
from curation.executors.attempt import attempt, attempt_together
from curation.pipeline import Step, takers
from curation.stage import Failure, Item, Stage


@dataclass(frozen=True, kw_only=True)
class Told:
    """One result, as its report tells of it."""

    key: Key
    num_bytes: int
    takers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What became of one item."""

    results: Sequence[Told]
    failures: Sequence[Failure]
    began_s: float
    ended_s: float
    refusal: str = ""
    """A fault of the machine that ends the run."""


class StageWorker:
    """An actor. Its calls come one after the other.

    Args:
        followers: the steps that may take its results.
    """

    def __init__(self, stage: Stage[Any, Any], followers: Sequence[Step]) -> None:
        self._stage = stage
        self._followers = followers
        self._batches = type(stage).process_batch is not Stage.process_batch

    def setup(self) -> tuple[int, float]:
        """Loads what the stage needs. Returns the number of this process, and seconds."""
        began = time.perf_counter()
        self._stage.setup()
        return os.getpid(), time.perf_counter() - began

    def run(self, *items: Item) -> Iterator[Any]:
        """First the reports on all items, then the results of all, one by one: each an object of
        its own in the store, so that it goes where it is wanted without passing the driver."""
        reports, results = self.run_small(*items)
        # Ray sends to the generator, which a `yield from` a list cannot take.
        yield from (part for part in [reports, *results])

    def run_small(self, *items: Item) -> tuple[list[Report], list[Any]]:
        """The same at once, for results that are no larger than a reference to them would be."""
        reports, results = [], []
        for part in [items] if self._batches else [(item,) for item in items]:
            told, made = self._part(part)
            reports += told
            results += made
            if told[-1].refusal:
                break
        return reports, results

    def teardown(self) -> None:
        self._stage.teardown()

    def _part(self, items: Sequence[Item]) -> tuple[list[Report], list[Any]]:
        """Items that are worked on together; each is taken to have cost as much as the others."""
        began = time.time()
        refusal = ""
        found: Sequence[Sequence[Any]] = [[] for _ in items]
        try:
            if len(items) == 1:
                found = [attempt(self._stage, items[0])]
            else:
                found = attempt_together(self._stage, items)
        except VfmError as error:
            refusal = str(error)
        each_s = (time.time() - began) / len(items)
        reports, results = [], []
        for number, (item, outcome) in enumerate(zip(items, found, strict=True)):
            made = [result for result in outcome if not isinstance(result, Failure)]
            report = Report(
                results=[
                    Told(
                        key=key_of(r, item),
                        num_bytes=size_of(r),
                        takers=takers(self._followers, r),
                    )
                    for r in made
                ],
                failures=[result for result in outcome if isinstance(result, Failure)],
                began_s=began + number * each_s,
                ended_s=began + (number + 1) * each_s,
                refusal=refusal,
            )
            reports.append(report)
            results += made
        return reports, results


def size_of(thing: Any) -> int:
    """Bytes that a thing takes in the store; arrays are not copied to know it."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)
