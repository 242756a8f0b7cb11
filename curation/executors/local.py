"""The executor in this process: no service, no copy, one item at a time through all stages.

Decoder and encoder threads use the other cores meanwhile.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

from common.errors import VfmError
from curation.pipeline import Memory
from curation.stage import Failure, Item, Stage, failure_of


class LocalExecutor:
    """Streams items depth first: an item reaches the last stage before the next one starts.

    Ctrl-C ends the run between two durable records, so the same command continues it.
    """

    def run(
        self, stages: Sequence[Stage[Any, Any]], items: Iterable[Item], memory: Memory
    ) -> Iterator[Any | Failure]:
        with contextlib.ExitStack() as stack:
            for stage in stages:
                stage.setup()
                stack.callback(stage.teardown)
            for item in items:
                yield from self._through(stages, item, memory)

    def _through(
        self, stages: Sequence[Stage[Any, Any]], item: Any, memory: Memory
    ) -> Iterator[Any | Failure]:
        if not stages or isinstance(item, Failure):
            yield item
            return
        for result in self._results(stages[0], item, memory):
            yield from self._through(stages[1:], result, memory)

    def _results(self, stage: Stage[Any, Any], item: Item, memory: Memory) -> Sequence[Any]:
        known = memory.recall(stage, item)
        if known is not None:
            return known
        began = time.perf_counter()
        results = attempt(stage, item)
        memory.record(stage, item, results, time.perf_counter() - began)
        return results


def attempt(stage: Stage[Any, Any], item: Item) -> Sequence[Any]:
    """One item through one stage, with retries; a failure is a result like others."""
    for number in range(1, stage.retries + 2):
        try:
            with _deadline(stage, item):
                return stage.process(item)
        except VfmError:
            raise
        except Exception as error:
            failure = failure_of(item, stage.name, number, error)
            if failure.lasting or number > stage.retries:
                return [failure]
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _deadline(stage: Stage[Any, Any], item: Item) -> Iterator[None]:
    """Raises `TimeoutError` in the main thread once the stage's time is over."""
    if stage.timeout_s is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{stage.name} of {item.label} took over {stage.timeout_s} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, stage.timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
