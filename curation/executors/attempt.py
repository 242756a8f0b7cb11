"""Items through one stage: retries, time-outs, failures. The same in every executor."""

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
            with _deadline(stage, item.label, 1):
                return stage.process(item)
        except VfmError:
            raise
        except Exception as error:
            failure = failure_of(item, stage.name, number, error)
            if failure.lasting or number > stage.retries:
                return [failure]
    raise AssertionError("unreachable")


def attempt_together(stage: Stage[Any, Any], items: Sequence[Item]) -> Sequence[Sequence[Any]]:
    """The results of each of several items, worked on at once; one by one where that fails."""
    try:
        with _deadline(stage, f"{len(items)} items", len(items)):
            found = stage.process_batch(items)
    except VfmError:
        raise
    except Exception:
        found = []
    # A batch that gives too few or too many results cannot be told apart by item.
    return found if len(found) == len(items) else [attempt(stage, item) for item in items]


@contextlib.contextmanager
def _deadline(stage: Stage[Any, Any], what: str, count: int) -> Iterator[None]:
    """Raises `TimeoutError` in the main thread once the stage's time is over."""
    if stage.timeout_s is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    limit_s = stage.timeout_s * count

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{stage.name} of {what} took over {limit_s} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
