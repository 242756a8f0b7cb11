"""What a stage is, apart from how it is run.

A stage turns one item into any number of items and declares what it needs. Executors make one
instance per worker, call `setup` once, `process` many times and `teardown` once. Stages and items
are picklable, hold no open handles before `setup`, and know nothing of the executor, so the same
stage runs in this process or on a far worker.
"""

import hashlib
import json
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from common.errors import MediaError

NOT_LASTING = frozenset(["missing", "unreadable", "changed", "being_written"])
"""Failures of the place where a file lies, or of the moment: the content may be fine, so they are
tried again and never recorded."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one worker of a stage holds while it lives."""

    cpus: float = 1.0
    gpus: float = 0.0
    min_gpus: float | None = None
    """The least share of a GPU that a worker can live on, in proportion slower; None is `gpus`."""
    memory_bytes: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)
    """Anything else that is counted, such as `{"nvdec": 1}`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Machines that qualify, such as `{"accelerator": "l40s"}`."""


class Item(Protocol):
    """What travels between stages."""

    @property
    def content_id(self) -> str:
        """Which source, by its bytes."""
        ...

    @property
    def span(self) -> str:
        """Which part of it; empty for the whole."""
        ...

    @property
    def label(self) -> str:
        """The name that a person knows it by."""
        ...


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One item, or one part of one, that failed alone."""

    content_id: str
    span: str
    label: str
    stage: str
    attempts: int
    reason: str
    """A slug for tables."""
    detail: str
    """A sentence for people."""
    lasting: bool
    """True where the item itself is at fault, so that trying again is pointless."""
    seconds: float = 0.0
    """Footage lost by it, where that is known."""
    traceback: str = ""
    """Where the code failed, for what is neither the item's fault nor a time-out."""


In = TypeVar("In", bound=Item)
Out = TypeVar("Out")


class Stage(ABC, Generic[In, Out]):
    """One step of a pipeline.

    `process` raises `MediaError` where the item is at fault, and `VfmError` where the run cannot
    go on; any other exception counts as the world's fault and is retried, as are `MediaError`s
    for one of the reasons in `NOT_LASTING`. It may also return `Failure`s among its results, for
    parts that failed alone; those it has tried again by itself.
    """

    name: str
    version: int = 1
    """Raised whenever the same parameters begin to give other results."""
    resources: Resources = Resources()
    batch_size: int = 1
    """Items that one call of a remote worker may carry, and that `process_batch` takes."""
    timeout_s: float | None = None
    """Per item; None is no limit."""
    retries: int = 1
    setup_s: float = 0.0
    """About how long `setup` takes. Pools of other sizes must be worth it; until the stages are
    measured, the longest is taken for the heaviest."""

    @abstractmethod
    def params(self) -> dict[str, Any]:
        """Everything that changes the results, as plain values."""

    @abstractmethod
    def process(self, item: In) -> Sequence[Out | Failure]:
        """One item to any number of results."""

    def process_batch(self, items: Sequence[In]) -> Sequence[Sequence[Out | Failure]]:
        """The results of each of several items, for models that take many at once: the same as of
        `process`, item by item. Where it raises, its items are tried one by one, so that a bad one
        fails alone. Called with at most `batch_size` items, by executors that have several."""
        return [self.process(item) for item in items]

    def setup(self) -> None:
        """Loads what `process` needs; called once in the worker."""

    def teardown(self) -> None:
        """Lets go of what `setup` took."""

    @property
    def params_hash(self) -> str:
        """Names the stage's results: equal hash and equal item, equal result."""
        text = json.dumps([self.name, self.version, self.params()], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def failure_of(item: Item, stage: str, attempts: int, error: Exception) -> Failure:
    """An exception as a record; `MediaError`s are lasting but for those in `NOT_LASTING`."""
    where = ""
    if isinstance(error, MediaError):
        reason, detail, lasting = error.reason, error.detail, error.reason not in NOT_LASTING
    elif isinstance(error, TimeoutError):
        reason, detail, lasting = "timeout", str(error) or "took too long", False
    else:
        reason, detail, lasting = "error", f"{type(error).__name__}: {error}", False
        where = "".join(traceback.format_exception(error))
    return Failure(
        content_id=item.content_id,
        span=item.span,
        label=item.label,
        stage=stage,
        attempts=attempts,
        reason=reason,
        detail=detail,
        lasting=lasting,
        seconds=float(getattr(error, "seconds", 0.0)),
        traceback=where,
    )


def failure_to_dict(failure: Failure) -> dict[str, Any]:
    return asdict(failure)
