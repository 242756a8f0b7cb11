"""A step while it runs: its queue, its workers, and what was measured of it."""

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from curation.engine.balance import Demand
from curation.engine.cluster import Key, Outcome
from curation.engine.packing import Slot
from curation.engine.resize import Member
from curation.pipeline import Step

WINDOW = 256
"""Items over which times are averaged."""
ENOUGH = 3
"""Items after which a step counts as measured."""
SURE = 64
"""Items after which a mean is good to a few percent."""


@dataclass(kw_only=True)
class Token:
    """An item on its way: who it is, where it came from, and a reference to what it carries."""

    key: Key
    payload: Any
    num_bytes: int
    origin: Any
    """The item of the input that it comes from, so that it can be made again."""
    path: tuple[tuple[str, Key], ...] = ()
    """The steps between, each with the item that it was given."""
    wanted: tuple[tuple[str, Key], ...] = ()
    """Where it is made again: of each following step's results, the one that was lost."""
    deaths: int = 0
    """Workers that have died on it; it is then carried out alone."""
    batched: bool = True
    """False once a worker has died on a batch that it was in."""


@dataclass(kw_only=True)
class Call:
    call_id: int
    tokens: list[Token]
    since_s: float
    """When it became the first in its worker's line."""


@dataclass(kw_only=True)
class Worker:
    worker_id: int
    slot: Slot
    since_s: float
    ready: bool = False
    draining: bool = False
    calls: deque[Call] = field(default_factory=deque)
    busy_s: float = 0.0
    num_done: int = 0


class Pool:
    """Not thread-safe: it belongs to the orchestrator's one thread."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.queue: deque[Token] = deque()
        self.workers: dict[int, Worker] = {}
        self.num_done = 0
        self.num_failed = 0
        self.busy_s = 0.0
        self.setup_failures = 0
        self._times: deque[float] = deque(maxlen=WINDOW)
        self._waits: deque[float] = deque(maxlen=16)
        self._taken: Counter[str] = Counter()
        self._num_fanned = 0
        self._out_bytes: deque[float] = deque(maxlen=WINDOW)

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def in_flight(self) -> int:
        return sum(len(c.tokens) for w in self.workers.values() for c in w.calls)

    @property
    def held_bytes(self) -> int:
        """Of what waits and of what is being worked on."""
        calls = (c for w in self.workers.values() for c in w.calls)
        return sum(t.num_bytes for t in self.queue) + sum(
            t.num_bytes for c in calls for t in c.tokens
        )

    @property
    def measured(self) -> bool:
        ready = sum(w.ready for w in self.workers.values())
        # The first to come back had the shortest items, so each worker is waited for.
        return len(self._times) >= min(max(ENOUGH, ready), SURE)

    @property
    def sure(self) -> bool:
        return len(self._times) >= SURE

    @property
    def service_s(self) -> float | None:
        """Seconds per item for a worker with its whole share; None while not measured."""
        return sum(self._times) / len(self._times) if self.measured else None

    @property
    def setup_s(self) -> float:
        """From the start of a worker until it is ready."""
        if not self._waits:
            return self.step.stage.setup_s
        return sum(self._waits) / len(self._waits)

    @property
    def ever_ready(self) -> bool:
        return bool(self._waits)

    @property
    def out_bytes(self) -> float:
        """Mean bytes of an item's results."""
        return sum(self._out_bytes) / len(self._out_bytes) if self._out_bytes else 0.0

    def fan_out(self, follower: str) -> float:
        """Mean results per item that the follower takes; 1 while nothing is known."""
        return self._taken[follower] / self._num_fanned if self._num_fanned else 1.0

    def became_ready(self, worker: Worker, waited_s: float) -> None:
        worker.ready = True
        self.setup_failures = 0
        self._waits.append(waited_s)

    def note(self, outcome: Outcome, worker: Worker) -> None:
        """Measures an item that was worked on."""
        wall_s = max(outcome.ended_s - outcome.began_s, 1e-6)
        self._times.append(wall_s * worker.slot.share)
        self.busy_s += wall_s
        worker.busy_s += wall_s
        worker.num_done += 1
        self._out_bytes.append(float(sum(made.num_bytes for made in outcome.results)))

    def note_results(self, takers: Counter[str]) -> None:
        """Counts where an item's results went, worked out or remembered."""
        self.num_done += 1
        self._num_fanned += 1
        self._taken.update(takers)

    def queue_limit(self) -> int:
        """How many items may wait: enough to bridge a moment, however many workers there are."""
        return max(8, 3 * len(self.workers) * self.step.stage.batch_size)

    def demand(self, items_left: float, prior_s: float | None, *, may_trim: bool = False) -> Demand:
        service_s = self.service_s or prior_s
        return Demand(
            name=self.name,
            needs=self.step.stage.resources,
            work_s=None if service_s is None else max(items_left, 1e-3) * service_s,
            setup_s=self.setup_s,
            fixed=self.step.workers,
            most=max(1, math.ceil(items_left / self.step.stage.batch_size)),
            may_trim=may_trim,
        )

    def members(self) -> list[Member]:
        return [
            Member(
                worker_id=w.worker_id,
                slot=w.slot,
                idle=not w.calls,
                draining=w.draining,
            )
            for w in self.workers.values()
        ]

    def counts(self) -> Mapping[str, int]:
        """Workers by state."""
        found = Counter(starting=0, busy=0, waiting=0, draining=0)
        for worker in self.workers.values():
            if worker.draining:
                found["draining"] += 1
            elif not worker.ready:
                found["starting"] += 1
            else:
                found["busy" if worker.calls else "waiting"] += 1
        return found
