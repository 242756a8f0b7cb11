"""The loop that keeps a graph of stages running: it moves references, and loses nothing when
workers do."""

import dataclasses
import itertools
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from common.errors import VfmError
from curation.engine.cluster import (
    Cluster,
    Done,
    Event,
    InputLost,
    Key,
    Made,
    Outcome,
    PayloadLost,
    Ready,
    Refused,
    SetupFailed,
    WorkerLost,
    key_of,
)
from curation.engine.crew import Crew, Pace
from curation.engine.pool import Call, Pool, Token, Worker
from curation.engine.sight import Sight, time_left_s
from curation.pipeline import Graph, Memory, Step, takers
from curation.stage import Failure, Item

_UNKNOWN_LEFT = 10_000
"""Items taken to be left of an input of unknown length."""
_MAX_DEATHS = 3
"""Workers that may die on an item before it is set aside."""
_MAX_SETUP_FAILURES = 3
_MAX_SETUP_FAILURES_LATER = 50
_MANY = 256
"""Results that may wait for the one who asked for them."""
_GRACE_S = 10.0
"""Beyond its time-out, for a worker that does not stop by itself."""


class Orchestrator:
    """One run of a graph on a cluster.

    Args:
        total: how many items the input has, where that is known.
        priors: seconds per item of stages measured before.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        memory: Memory,
        *,
        total: int | None = None,
        priors: Mapping[str, float] | None = None,
        pace: Pace | None = None,
        sight: Sight | None = None,
    ) -> None:
        self._graph = graph
        self._cluster = cluster
        self._memory = memory
        self._total = total
        self._pace = pace or Pace()
        self.sight = sight or Sight()
        self.pools = {name: Pool(graph.steps[name]) for name in graph.order}
        self._crew = Crew(
            graph, cluster, self.pools, self.sight, pace=self._pace, priors=priors or {}
        )
        self._numbers = itertools.count(1)
        self._out: deque[Any] = deque()
        self._num_admitted = 0
        self._exhausted = False
        self._next_sample_s = cluster.now()
        self._known: dict[str, tuple[bool, bool]] = {}
        self._finished: set[str] = set()

    def run(self, items: Iterable[Item]) -> Generator[Any | Failure, None, None]:
        """Yields results and failures as they come."""
        waiting = iter(items)
        try:
            while True:
                self._admit(waiting)
                self._retire_finished()
                more = bool(self._out)
                while self._out:
                    yield self._out.popleft()
                if self._exhausted and len(self._finished) == len(self.pools):
                    break
                left = self._left()
                self._crew.size(left, self._finished)
                self._dispatch(left)
                self._sample()
                for event in self._cluster.poll(0.0 if more else self._patience()):
                    self._hear(event)
            self._sample(last=True)
        finally:
            self._crew.let_go_of_all()

    # ---- items

    def _admit(self, waiting: Iterator[Item]) -> None:
        while not self._exhausted and len(self._out) < _MANY:
            if any(
                len(self.pools[s.name].queue) >= self.pools[s.name].queue_limit()
                for s in self._graph.first
            ):
                return
            item = next(waiting, None)
            if item is None:
                self._exhausted = True
                return
            self._num_admitted += 1
            key = key_of(item, item)
            token = Token(key=key, payload=item, num_bytes=0, origin=item)
            self._route(token, takers(self._graph.first, item))

    def _route(self, token: Token, names: Sequence[str]) -> None:
        """Gives an item to the steps that take it; what none takes is a result."""
        if token.wanted:
            names = tuple(n for n in names if n == token.wanted[0][0])
        if not names:
            try:
                self._out.append(self._cluster.value(token.payload))
            except PayloadLost:
                self._make_again(token, "")
            return
        for name in names:
            self._enter(dataclasses.replace(token), name)

    def _enter(self, token: Token, name: str) -> None:
        """Queues an item for a step, or passes on what is remembered of it."""
        pool = self.pools[name]
        item = token.origin if token.payload is token.origin else token.key
        known = self._memory.recall(pool.step.stage, item)
        if known is None:
            pool.put(token)
            self._finished.discard(name)
            return
        followers = self._graph.followers[name]
        made = [_made(followers, result, token.key) for result in known]
        self._pass_on(token, pool, made)

    def _pass_on(self, token: Token, pool: Pool, results: Sequence[Made | Failure]) -> None:
        taken: Counter[str] = Counter()
        wanted = token.wanted[1:] if token.wanted else ()
        for result in results:
            if isinstance(result, Failure):
                pool.num_failed += 1
                self._out.append(result)
                continue
            taken.update(result.takers)
            if wanted and result.key != wanted[0][1]:
                continue
            child = Token(
                key=result.key,
                payload=result.payload,
                num_bytes=result.num_bytes,
                origin=token.origin,
                path=(*token.path, (pool.name, token.key)),
                wanted=wanted,
            )
            if wanted and not wanted[0][0]:
                child.wanted = ()
                self._route(child, ())
            else:
                self._route(child, result.takers)
        pool.note_results(taken)

    def _make_again(self, token: Token, step: str) -> None:
        """What an item carried is lost, so it is made again from the input, and nothing else."""
        origin = token.origin
        key = key_of(origin, origin)
        path = (*token.path, (step, token.key))
        again = Token(key=key, payload=origin, num_bytes=0, origin=origin, wanted=path)
        again.deaths = token.deaths if not token.path else 0
        self.sight.decided(self._cluster.now(), f"{token.key.label} is made again", "it was lost")
        self._enter(again, path[0][0])

    # ---- work

    def _dispatch(self, left: Mapping[str, float]) -> None:
        """From the last step to the first, so that what is nearly done goes first."""
        for name in reversed(self._graph.order):
            pool = self.pools[name]
            while pool.queue and self._has_room(pool):
                worker = self._free_worker(pool, left[name])
                if worker is None:
                    break
                self._submit(pool, worker)

    def _free_worker(self, pool: Pool, items_left: float) -> Worker | None:
        """An idle worker, the fastest first. Where work abounds, also one whose next item can be
        fetched while it is busy; near the end that would keep items from idle workers."""
        able = [w for w in pool.workers.values() if w.ready and not w.draining]
        idle = [w for w in able if not w.calls]
        if idle:
            return max(idle, key=lambda w: (w.slot.share, -w.worker_id))
        if pool.queue[0].deaths or items_left <= 2 * len(able) * pool.step.stage.batch_size:
            return None
        single = [w for w in able if len(w.calls) == 1 and not w.calls[0].tokens[0].deaths]
        return min(single, key=lambda w: (w.calls[0].since_s, w.worker_id), default=None)

    def _submit(self, pool: Pool, worker: Worker) -> None:
        tokens = [pool.queue.popleft()]
        while (
            pool.queue
            and len(tokens) < pool.step.stage.batch_size
            and all(t.batched and not t.deaths for t in (tokens[0], pool.queue[0]))
        ):
            tokens.append(pool.queue.popleft())
        call = Call(call_id=next(self._numbers), tokens=tokens, since_s=self._cluster.now())
        pool.begin(worker, call)
        payloads = [token.payload for token in tokens]
        self._cluster.submit(worker.worker_id, call.call_id, payloads)

    def _has_room(self, pool: Pool) -> bool:
        """Whether what the next call gives can wait, by count and by bytes."""
        budget = self._pace.store_share * self._cluster.store_bytes() / max(1, len(self.pools))
        coming = pool.in_flight + pool.step.stage.batch_size
        for follower in self._graph.followers[pool.name]:
            there = self.pools[follower.name]
            if not there.queue and not pool.in_flight:
                continue  # one is always let through
            if len(there.queue) + coming * pool.fan_out(follower.name) > there.queue_limit():
                return False
            if there.held_bytes + coming * pool.out_bytes > budget:
                return False
        return True

    # ---- events

    def _hear(self, event: Event) -> None:
        if isinstance(event, Refused):
            raise VfmError(event.detail)
        pool = self._crew.pool_of(event.worker_id)
        if pool is None:
            return
        worker = pool.workers[event.worker_id]
        if isinstance(event, Ready):
            pool.became_ready(worker, event.loaded_s)
            self.sight.came(pool.name, worker.worker_id, self._cluster.now())
        elif isinstance(event, Done):
            self._done(pool, worker, event)
        elif isinstance(event, InputLost):
            for token in pool.finish(worker, event.call_id, self._cluster.now()).tokens:
                self._make_again(token, pool.name)
        elif isinstance(event, SetupFailed):
            self._setup_failed(pool, worker, event.detail)
        else:
            self._lost(pool, worker, event)

    def _done(self, pool: Pool, worker: Worker, event: Done) -> None:
        call = pool.finish(worker, event.call_id, self._cluster.now())
        for token, outcome in zip(call.tokens, event.outcomes, strict=True):
            pool.note(outcome, worker)
            self.sight.worked(pool.name, worker.worker_id, outcome.began_s, outcome.ended_s)
            results: list[Made | Failure] = [*outcome.results, *outcome.failures]
            try:
                wall_s = outcome.ended_s - outcome.began_s
                values = _Values(self._cluster, outcome)
                self._memory.record(pool.step.stage, token.key, values, wall_s)
            except PayloadLost:
                pool.put(token, first=True)
                continue
            self._pass_on(token, pool, results)
        if self._known.get(pool.name) != (known := (pool.measured, pool.sure)):
            self._known[pool.name] = known
            self._crew.size_soon()
        if worker.draining and not worker.calls:
            self._crew.let_go(worker.worker_id)

    def _setup_failed(self, pool: Pool, worker: Worker, detail: str) -> None:
        self._crew.forget(worker.worker_id)
        pool.setup_failures += 1
        self.sight.decided(self._cluster.now(), f"{pool.name}: a worker did not start", detail)
        # Once some have started, it may be a node that was lost with all its workers.
        limit = _MAX_SETUP_FAILURES_LATER if pool.ever_ready else _MAX_SETUP_FAILURES
        if pool.setup_failures >= limit:
            raise VfmError(
                f"stage {pool.name} cannot start its workers ({detail.strip().splitlines()[-1]}): "
                "see that it has what it needs on every node"
            )
        self._crew.size_soon()

    def _lost(self, pool: Pool, worker: Worker, event: WorkerLost, reason: str = "") -> None:
        """The first call of a dead worker is suspected; the others had not begun."""
        if not worker.ready:
            return self._setup_failed(pool, worker, event.detail)
        self._crew.forget(worker.worker_id)
        self.sight.decided(
            self._cluster.now(), f"{pool.name}: a worker was lost", event.detail.split("\n")[0]
        )
        for place, call in enumerate(reversed(worker.calls)):
            first = place == len(worker.calls) - 1
            for token in reversed(call.tokens):
                if first and len(call.tokens) == 1:
                    token.deaths += 1
                    limit = pool.step.stage.retries + 1 if reason else _MAX_DEATHS
                    if token.deaths >= limit:
                        self._set_aside(pool, token, event.detail, reason or "kills_workers")
                        continue
                token.batched = token.batched and not first
                pool.put(token, first=True)
        self._crew.size_soon()
        return None

    def _set_aside(self, pool: Pool, token: Token, detail: str, reason: str) -> None:
        failure = Failure(
            content_id=token.key.content_id,
            span=token.key.span,
            label=token.key.label,
            stage=pool.name,
            attempts=token.deaths,
            reason=reason,
            detail=" ".join(detail.split())[:300],
            lasting=False,
        )
        self._memory.record(pool.step.stage, token.key, [failure], 0.0)
        self._pass_on(token, pool, [failure])

    def _check_times(self) -> None:
        """Kills workers that do not come back from an item."""
        now = self._cluster.now()
        for pool in self.pools.values():
            limit_s = pool.step.stage.timeout_s
            if limit_s is None:
                continue
            for worker in list(pool.workers.values()):
                if not worker.ready or not worker.calls:
                    continue
                tries = (pool.step.stage.retries + 1) * len(worker.calls[0].tokens)
                if now - worker.calls[0].since_s > limit_s * tries + _GRACE_S:
                    self._cluster.stop(worker.worker_id, kill=True)
                    detail = f"{pool.name} took over {limit_s} s and did not stop"
                    lost = WorkerLost(worker_id=worker.worker_id, detail=detail)
                    self._lost(pool, worker, lost, "timeout")

    # ---- pools

    def _left(self) -> dict[str, float]:
        """Items that each step has before it, those still to be made by earlier steps included."""
        coming = 0.0
        if not self._exhausted:
            coming = _UNKNOWN_LEFT
            if self._total is not None:
                coming = max(1, self._total - self._num_admitted)
        left: dict[str, float] = {}
        for name in self._graph.order:
            pool = self.pools[name]
            count = float(len(pool.queue) + pool.in_flight)
            if not pool.step.after:
                count += coming
            for before in pool.step.after:
                count += left[before] * self.pools[before].fan_out(name)
            left[name] = count
        return left

    def _retire_finished(self) -> None:
        if not self._exhausted:
            return
        for name in self._graph.order:
            pool = self.pools[name]
            done = not pool.queue and not pool.in_flight
            if done and name not in self._finished and self._finished.issuperset(pool.step.after):
                self._finished.add(name)
                for worker_id in list(pool.workers):
                    self._crew.let_go(worker_id)
                self._crew.size_soon()

    # ---- time

    def _patience(self) -> float:
        due = min(self._crew.next_s, self._next_sample_s)
        return min(1.0, max(0.0, due - self._cluster.now()))

    def _sample(self, *, last: bool = False) -> None:
        now = self._cluster.now()
        if now < self._next_sample_s and not last:
            return
        self._next_sample_s = max(self._next_sample_s + 1.0, now + 0.5)
        self._check_times()
        self._crew.look_at_nodes()
        left = self._left()
        known = self._exhausted or self._total is not None
        left_s = time_left_s(self.pools, left) if known else None
        self.sight.sample(now, self.pools, left, left_s)


def _made(followers: Sequence[Step], result: Any, source: Key) -> Made | Failure:
    """A remembered result as if a worker had just given it."""
    if isinstance(result, Failure):
        return result
    key = key_of(result, source)
    return Made(key=key, payload=result, num_bytes=0, takers=takers(followers, result))


class _Values(Sequence[Any]):
    """Results of an outcome, fetched only where somebody looks."""

    def __init__(self, cluster: Cluster, outcome: Outcome) -> None:
        self._cluster = cluster
        self._outcome = outcome
        self._fetched: list[Any] | None = None

    def _all(self) -> list[Any]:
        if self._fetched is None:
            made = [self._cluster.value(made.payload) for made in self._outcome.results]
            self._fetched = [*made, *self._outcome.failures]
        return self._fetched

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._outcome.results) + len(self._outcome.failures)
