"""A chain of stages, and what an executor is asked to do with it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from curation.stage import Failure, Item, Stage


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What was done before. `recall` gives a stage's results for an item, or None; `record` keeps
    them, durably before it returns."""

    recall: Callable[[Stage[Any, Any], Item], Sequence[Any] | None]
    record: Callable[[Stage[Any, Any], Item, Sequence[Any], float], None]
    """(stage, item, results, seconds of work)"""


class Executor(Protocol):
    """Runs items through stages; yields what comes out at the end, and every failure, as it comes.

    The order of the results is the executor's own; nothing downstream may depend on it.
    """

    def run(
        self, stages: Sequence[Stage[Any, Any]], items: Iterable[Item], memory: Memory
    ) -> Iterator[Any | Failure]: ...
