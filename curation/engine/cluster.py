"""What the orchestrator asks of a cluster, and what it hears back. Ray's and a simulated one have
this face."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from curation.engine.packing import Node, Slot
from curation.pipeline import Step
from curation.stage import Failure, Item


@dataclass(frozen=True, kw_only=True)
class Key:
    """An item without its payload."""

    content_id: str
    span: str
    label: str


def key_of(thing: Any, source: Item | Key) -> Key:
    """Who a thing is. What a run ends with need be no item; it then goes by what it came from."""
    return Key(
        content_id=getattr(thing, "content_id", source.content_id),
        span=getattr(thing, "span", source.span),
        label=getattr(thing, "label", source.label),
    )


@dataclass(frozen=True, kw_only=True)
class Made:
    """One result of a worker. `payload` is the cluster's own: a reference, or the thing itself."""

    key: Key
    payload: Any
    num_bytes: int
    takers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one item of a call. Times are of the worker's wall clock, in seconds."""

    results: Sequence[Made]
    failures: Sequence[Failure]
    began_s: float
    ended_s: float


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A worker has loaded what it needs. `loaded_s` is how long that took once its process was
    there: when many start at once they wait for each other, which says nothing of the next one."""

    worker_id: int
    loaded_s: float


@dataclass(frozen=True, kw_only=True)
class Done:
    worker_id: int
    call_id: int
    outcomes: Sequence[Outcome]


@dataclass(frozen=True, kw_only=True)
class InputLost:
    """A call could not begin, because what it was given is gone with a node."""

    worker_id: int
    call_id: int


@dataclass(frozen=True, kw_only=True)
class WorkerLost:
    """A worker and its calls are gone."""

    worker_id: int
    detail: str


@dataclass(frozen=True, kw_only=True)
class SetupFailed:
    """A worker could not load what it needs, and is gone."""

    worker_id: int
    detail: str


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A stage met a fault of the machine, for which no item is to blame: the run must end."""

    detail: str


Event = Ready | Done | InputLost | WorkerLost | SetupFailed | Refused


class Cluster(Protocol):
    """Workers by number. Calls of one worker are carried out in the order in which they came."""

    def now(self) -> float:
        """Seconds on the clock by which the run is paced."""
        ...

    def nodes(self) -> Sequence[Node]:
        """The machines that are there now."""
        ...

    def start(self, worker_id: int, step: Step, slot: Slot) -> None:
        """Starts a worker; `Ready`, `SetupFailed` or `WorkerLost` follows."""
        ...

    def submit(self, worker_id: int, call_id: int, payloads: Sequence[Any]) -> None:
        """Gives a worker items; `Done`, `InputLost` or `WorkerLost` follows."""
        ...

    def stop(self, worker_id: int, *, kill: bool = False) -> None:
        """Lets go of a worker. Without `kill` it has no calls left."""
        ...

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """What has happened; waits for something at most so long."""
        ...

    def value(self, payload: Any) -> Any:
        """What a payload stands for."""
        ...

    def store_bytes(self) -> float:
        """The size of the store in which results wait."""
        ...


class PayloadLost(Exception):
    """What a payload stood for is gone with a node."""
