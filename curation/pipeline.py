"""The graph of stages, and what an executor is asked to do with it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol

from common.errors import ConfigError
from curation.engine.sight import Sight
from curation.stage import Failure, Item, Stage


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What was done before. `recall` gives a stage's results for an item, or None; `record` keeps
    them, durably before it returns. Of an item that comes from another stage, only its identity is
    there to be read."""

    recall: Callable[[Stage[Any, Any], Item], Sequence[Any] | None]
    record: Callable[[Stage[Any, Any], Item, Sequence[Any], float], None]
    """(stage, item, results, seconds of work)"""


FORGETFUL = Memory(
    recall=lambda stage, item: None, record=lambda stage, item, results, wall_s: None
)
"""Keeps nothing."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A stage and its place in a graph; it goes by the stage's name."""

    stage: Stage[Any, Any]
    after: tuple[str, ...] = ()
    """Steps whose results it takes; none takes the input."""
    when: Callable[[Any], bool] | None = None
    """Which of those results; None takes all. A plain function, since it travels to workers."""
    workers: int | None = None
    """A fixed number of workers; None leaves it to the balancer."""

    @property
    def name(self) -> str:
        return self.stage.name


class Graph:
    """Steps without circles. Several may take the results of one, and one those of several.

    A result that no step takes is a result of the run. Raises `ConfigError` for what is no graph.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        listed = list(steps)
        self.steps: dict[str, Step] = {step.name: step for step in listed}
        if len(self.steps) != len(listed):
            names = [step.name for step in listed]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"two steps are called '{twice}': give one stage another name")
        for step in listed:
            for name in step.after:
                if name not in self.steps:
                    raise ConfigError(f"step '{step.name}' comes after '{name}', which is no step")
        try:
            before = {step.name: step.after for step in listed}
            order = list(TopologicalSorter(before).static_order())
        except CycleError as error:
            circle = " -> ".join(error.args[1])
            raise ConfigError(f"the steps go in a circle: {circle}") from None
        self.order: tuple[str, ...] = tuple(order)
        """Names, each after those whose results it takes."""
        self.followers: Mapping[str, tuple[Step, ...]] = {
            name: tuple(self.steps[n] for n in order if name in self.steps[n].after)
            for name in ["", *order]
        }
        self.first: tuple[Step, ...] = tuple(
            self.steps[name] for name in order if not self.steps[name].after
        )

    @classmethod
    def chain(cls, stages: Sequence[Stage[Any, Any]]) -> "Graph":
        """One stage after the other."""
        return cls(
            Step(stage=stage, after=(stages[i - 1].name,) if i else ())
            for i, stage in enumerate(stages)
        )


def takers(followers: Sequence[Step], result: Any) -> tuple[str, ...]:
    """The steps that take a result."""
    return tuple(step.name for step in followers if step.when is None or step.when(result))


class Executor(Protocol):
    """Runs items through a graph; yields what comes out at the end, and every failure, as it comes.

    The order of the results is the executor's own; nothing downstream may depend on it. `total` is
    how many items there will be, where that is known.
    """

    @property
    def workers(self) -> Mapping[str, int]:
        """The most that each stage has had at once; stages that are not named had one."""
        ...

    @property
    def sight(self) -> Sight | None:
        """What is seen of the current run; None for an executor without an engine."""
        ...

    def run(
        self,
        graph: Graph,
        items: Iterable[Item],
        memory: Memory,
        *,
        total: int | None = None,
    ) -> Iterator[Any | Failure]: ...
