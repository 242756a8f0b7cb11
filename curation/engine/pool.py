"""A step while it runs: its queue, its workers, and what was measured of it."""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
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
START_S = 1.0
"""About what a worker's process takes to start."""
SURE = 112
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
        self.in_flight = 0
        """Items that workers have."""
        self.held_bytes = 0
        """Of what waits and of what workers have."""
        self.num_ready = 0
        self.num_done = 0
        self.num_failed = 0
        self.busy_s = 0.0
        self.setup_failures = 0
        self._times: deque[float] = deque(maxlen=WINDOW)
        self._loads: deque[float] = deque(maxlen=16)
        self._taken: Counter[str] = Counter()
        self._num_fanned = 0
        self._out_bytes: deque[float] = deque(maxlen=WINDOW)

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def waiting_s(self) -> float:
        """For how long its workers have work that nobody has begun with; 0 while not measured."""
        begun = sum(len(w.calls[0].tokens) for w in self.workers.values() if w.calls)
        shares = sum(w.slot.share for w in self.workers.values() if w.ready)
        items = len(self.queue) + self.in_flight - begun
        return items * (self.service_s or 0.0) / shares if shares else 0.0

    @property
    def measured(self) -> bool:
        # The first to come back had the shortest items, so each worker is waited for.
        return len(self._times) >= min(max(ENOUGH, self.num_ready), SURE)

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
        loads = self._loads or [self.step.stage.setup_s]
        return START_S + sum(loads) / len(loads)

    @property
    def ever_ready(self) -> bool:
        return bool(self._loads)

    @property
    def out_bytes(self) -> float:
        """Mean bytes of an item's results."""
        return sum(self._out_bytes) / len(self._out_bytes) if self._out_bytes else 0.0

    def fan_out(self, follower: str) -> float:
        """Mean results per item that the follower takes; 1 while nothing is known."""
        return self._taken[follower] / self._num_fanned if self._num_fanned else 1.0

    def put(self, token: Token, *, first: bool = False) -> None:
        """Queues an item, before all others if `first`."""
        self.queue.insert(0 if first else len(self.queue), token)
        self.held_bytes += token.num_bytes

    def begin(self, worker: Worker, call: Call) -> None:
        """A worker has taken items from the queue."""
        worker.calls.append(call)
        self.in_flight += len(call.tokens)

    def finish(self, worker: Worker, call_id: int, now_s: float) -> Call:
        """A worker is through with a call, and begins with the next it has."""
        call = next(c for c in worker.calls if c.call_id == call_id)
        worker.calls.remove(call)
        self._released([call])
        if worker.calls:
            worker.calls[0].since_s = now_s
        return call

    def drop(self, worker_id: int) -> None:
        """A worker is gone, and what it had is no longer here."""
        worker = self.workers.pop(worker_id)
        self.num_ready -= worker.ready
        self._released(worker.calls)

    def _released(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self.in_flight -= len(call.tokens)
            self.held_bytes -= sum(token.num_bytes for token in call.tokens)

    def became_ready(self, worker: Worker, loaded_s: float) -> None:
        worker.ready = True
        self.num_ready += 1
        self.setup_failures = 0
        self._loads.append(loaded_s)

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

    def demand(
        self, items_left: float, ahead: float, prior_s: float | None, *, fed_s: float = 0.0
    ) -> Demand:
        """What the balancer is told. `ahead` are items that the step has done and that still wait
        after it: a pool must keep pace with the slowest, not be done before it, so they count."""
        service_s = self.service_s or prior_s
        return Demand(
            name=self.name,
            needs=self.step.stage.resources,
            work_s=None if service_s is None else max(items_left + ahead, 1e-3) * service_s,
            setup_s=self.setup_s,
            fixed=self.step.workers,
            most=max(1, math.ceil(items_left / self.step.stage.batch_size)),
            sure=self.sure,
            fed_s=fed_s,
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
