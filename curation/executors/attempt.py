"""One item through one stage: retries, time-outs, failures. The same in every executor."""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from common.errors import VfmError
from curation.stage import Item, Stage, failure_of


def attempt(stage: Stage[Any, Any], item: Item) -> Sequence[Any]:
    """The results of one item, with retries; a failure is a result like others."""
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
