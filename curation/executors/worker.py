"""What runs in a remote worker: one stage, loaded once, and a report beside its results."""

import os
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import VfmError
from curation.engine.cluster import Key, key_of
from curation.executors.attempt import attempt
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

    def setup(self) -> int:
        """Loads what the stage needs. Returns the number of this process."""
        self._stage.setup()
        return os.getpid()

    def run(self, *items: Item) -> Iterator[Any]:
        """First the reports on all items, then the results of all, one by one: each an object of
        its own in the store, so that it goes where it is wanted without passing the driver."""
        reports, results = self.run_small(*items)
        # Ray sends to the generator, which a `yield from` a list cannot take.
        yield from (part for part in [reports, *results])

    def run_small(self, *items: Item) -> tuple[list[Report], list[Any]]:
        """The same at once, for results that are no larger than a reference to them would be."""
        reports, results = [], []
        for item in items:
            report, made = self._one(item)
            reports.append(report)
            results += made
            if report.refusal:
                break
        return reports, results

    def teardown(self) -> None:
        self._stage.teardown()

    def _one(self, item: Item) -> tuple[Report, list[Any]]:
        began = time.time()
        refusal, found = "", []
        try:
            found = attempt(self._stage, item)
        except VfmError as error:
            refusal = str(error)
        results = [result for result in found if not isinstance(result, Failure)]
        told = [
            Told(
                key=key_of(r, item),
                num_bytes=size_of(r),
                takers=takers(self._followers, r),
            )
            for r in results
        ]
        report = Report(
            results=told,
            failures=[result for result in found if isinstance(result, Failure)],
            began_s=began,
            ended_s=time.time(),
            refusal=refusal,
        )
        return report, results


def size_of(thing: Any) -> int:
    """Bytes that a thing takes in the store; arrays are not copied to know it."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)
