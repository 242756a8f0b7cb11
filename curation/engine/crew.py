"""The workers of a run: how many each step has, by what was measured; every change is told with its
reason."""

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from curation.engine.cluster import Cluster
from curation.engine.pool import Pool, Worker
from curation.engine.resize import Plan, plan
from curation.engine.sight import Sight
from curation.pipeline import Graph


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often pools are sized."""

    early_s: float = 3.0
    """Until every step is measured."""
    steady_s: float = 15.0
    headroom: float = 1.25
    """How much faster than needed steps without GPUs may be, where processors are spare."""
    store_share: float = 0.5
    """Of the object store, what waiting results may fill."""


class Crew:
    """Starts, drains and lets go of workers, in the pools of their steps.

    Args:
        priors: seconds per item of stages measured before.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        pools: Mapping[str, Pool],
        sight: Sight,
        *,
        pace: Pace,
        priors: Mapping[str, float],
    ) -> None:
        self._graph = graph
        self._cluster = cluster
        self._pools = pools
        self._sight = sight
        self._pace = pace
        self._priors = priors
        self._of_worker: dict[int, str] = {}
        self._nodes: frozenset[str] = frozenset()
        self._numbers = itertools.count(1)
        self.next_s = cluster.now()
        """When pools are to be looked at again."""

    def pool_of(self, worker_id: int) -> Pool | None:
        """None for a worker that was let go."""
        name = self._of_worker.get(worker_id)
        return None if name is None else self._pools[name]

    def size_soon(self) -> None:
        self.next_s = -math.inf

    def look_at_nodes(self) -> None:
        """Sizes pools at once where a node has come or gone since they were sized."""
        if not self._nodes:
            return
        nodes = frozenset(node.node_id for node in self._cluster.nodes())
        if nodes != self._nodes:
            change = f"nodes: {len(nodes - self._nodes)} came, {len(self._nodes - nodes)} went"
            self._sight.decided(self._cluster.now(), change, "pools are sized anew")
            self._nodes = nodes
            self.size_soon()

    def size(self, left: Mapping[str, float], finished: Collection[str]) -> None:
        """Looks at all pools, if it is time. `left` are the items that each step has before it."""
        now = self._cluster.now()
        active = [p for n, p in self._pools.items() if n not in finished]
        # Nothing may be to be done yet, such as while an earlier run's work is recalled.
        if now < self.next_s or not any(p.queue or p.in_flight for p in active):
            return
        early = any(not p.measured for p in active)
        self.next_s = now + (self._pace.early_s if early else self._pace.steady_s)
        ahead = self._ahead()
        demands = [
            p.demand(left[p.name], ahead[p.name], self._priors.get(p.name), fed_s=self._fed_s(p))
            for p in active
        ]
        pools = {name: pool.members() for name, pool in self._pools.items()}
        nodes = self._cluster.nodes()
        self._nodes = frozenset(node.node_id for node in nodes)
        made = plan(demands, nodes, pools, headroom=self._pace.headroom)
        for start in made.starts:
            worker = Worker(worker_id=next(self._numbers), slot=start.slot)
            self._pools[start.step].workers[worker.worker_id] = worker
            self._of_worker[worker.worker_id] = start.step
            self._cluster.start(worker.worker_id, self._graph.steps[start.step], start.slot)
        for retire in made.retires:
            self._pools[retire.step].workers[retire.worker_id].draining = True
        self._tell(now, made)
        for retire in made.retires:
            if not self._pools[retire.step].workers[retire.worker_id].calls:
                self.let_go(retire.worker_id)
        self._sight.sized(self._pools)

    def let_go(self, worker_id: int, *, kill: bool = False) -> None:
        self._cluster.stop(worker_id, kill=kill)
        self.forget(worker_id)
        self.size_soon()

    def let_go_of_all(self) -> None:
        """At the end of a run, whatever they do."""
        for worker_id in list(self._of_worker):
            self.let_go(worker_id, kill=True)

    def forget(self, worker_id: int) -> None:
        """A worker that is gone."""
        name = self._of_worker.pop(worker_id)
        self._pools[name].drop(worker_id)
        self._sight.went(name, worker_id, self._cluster.now())

    def _ahead(self) -> dict[str, float]:
        """Items that each step has done and that later steps still have before them."""
        ahead: dict[str, float] = {}
        for name in reversed(self._graph.order):
            ahead[name] = 0.0
            for step in self._graph.followers[name]:
                pool = self._pools[step.name]
                fan_out = self._pools[name].fan_out(step.name)
                if fan_out:
                    waiting = len(pool.queue) + pool.in_flight + ahead[step.name]
                    ahead[name] = max(ahead[name], waiting / fan_out)
        return ahead

    def _fed_s(self, pool: Pool) -> float:
        """For how long those after a step have work waiting; 0 while times are not known well."""
        after = [self._pools[step.name] for step in self._graph.followers[pool.name]]
        if not all(p.sure for p in (pool, *after)):
            return 0.0
        return min((p.waiting_s for p in after), default=0.0)

    def _tell(self, now: float, made: Plan) -> None:
        for name, pool in self._pools.items():
            starts = [s for s in made.starts if s.step == name]
            gone = [r for r in made.retires if r.step == name]
            if starts or gone:
                reason = [*starts, *gone][0].reason
                shares = [s.slot.share for s in starts if s.slot.share != 1]
                more = f", of which {shares[0]:g} of a GPU" if shares else ""
                staying = sum(not w.draining for w in pool.workers.values())
                before = staying - len(starts) + len(gone)
                self._sight.decided(now, f"{name}: {before} -> {staying} workers{more}", reason)
