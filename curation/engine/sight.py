"""What can be seen of a run: a series of samples, every decision with its reason, the capacity
table, and one sentence that names the bottleneck."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curation.engine.pool import Pool


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """One line of the capacity table."""

    step: str
    workers: float
    """Whole ones; a worker with half a GPU counts half."""
    tasks_per_s: float
    """Of one worker."""
    visits: float
    """Tasks per item of the input."""

    @property
    def inputs_per_s(self) -> float:
        """Items of the input per second that the step's pool can keep up with."""
        return self.workers * self.tasks_per_s / self.visits if self.visits else math.inf


class Sight:
    """Samples and decisions of one run, as lines of JSON where a file is given.

    Args:
        began_s: from when times count, by the cluster's clock; None is the first line.
    """

    def __init__(self, path: Path | None = None, *, began_s: float | None = None) -> None:
        self._path = path
        self._began_s = began_s
        self.samples: list[dict[str, Any]] = []
        self.decisions: list[dict[str, Any]] = []
        self.table: list[Capacity] = []
        self.most: dict[str, int] = {}
        """Workers of each step, the most at once."""

    def worked(self, step: str, worker_id: int, began_s: float, ended_s: float) -> None:
        """An item was worked on, by the worker's clock. Nothing is kept of it here."""

    def came(self, step: str, worker_id: int, now_s: float) -> None:
        """A worker is ready, by the cluster's clock. Nothing is kept of it here."""

    def went(self, step: str, worker_id: int, now_s: float) -> None:
        """A worker was let go or is lost."""

    def decided(self, now_s: float, what: str, why: str) -> None:
        line = {"at_s": self._at(now_s), "decision": what, "reason": why}
        self.decisions.append(line)
        self._write(line)

    def sized(self, pools: "Mapping[str, Pool]") -> None:
        """Pools were looked at; the table follows what was measured."""
        self.table = capacities(pools)
        for name, pool in pools.items():
            staying = sum(not worker.draining for worker in pool.workers.values())
            self.most[name] = max(staying, self.most.get(name, 0))

    def sample(
        self,
        now_s: float,
        pools: "Mapping[str, Pool]",
        left: Mapping[str, float],
        left_s: float | None,
    ) -> None:
        """Once a second. `left` are items by step, `left_s` the time until all is done, where it
        can be told."""
        self.table = capacities(pools)
        steps = {
            name: {
                "queue": len(pool.queue),
                "queue_bytes": sum(token.num_bytes for token in pool.queue),
                **pool.counts(),
                "done": pool.num_done,
                "failed": pool.num_failed,
                "left": round(left[name], 1),
                "service_s": pool.service_s,
            }
            for name, pool in pools.items()
        }
        line = {
            "at_s": self._at(now_s),
            "left_s": None if left_s is None else round(left_s, 1),
            "gpus_busy": gpus_busy(pools),
            "steps": steps,
        }
        self.samples.append(line)
        self._write(line)

    def bottleneck(self) -> str:
        """One sentence; empty while too little is measured."""
        return bottleneck(self.table)

    def _at(self, now_s: float) -> float:
        self._began_s = now_s if self._began_s is None else self._began_s
        return round(now_s - self._began_s, 3)

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def gpus_busy(pools: "Mapping[str, Pool]") -> float | None:
    """Of the GPUs that workers hold at this moment, the share whose workers are at work."""
    workers = [w for pool in pools.values() for w in pool.workers.values()]
    held = sum(w.slot.needs.gpus * w.slot.share for w in workers)
    busy = sum(w.slot.needs.gpus * w.slot.share for w in workers if w.calls)
    return round(busy / held, 4) if held else None


def time_left_s(pools: "Mapping[str, Pool]", left: Mapping[str, float]) -> float | None:
    """Until the slowest step is done, by mean times and the pools as they are; None while a step
    that still has work is not measured or has no worker."""
    longest = 0.0
    for name, pool in pools.items():
        if left[name] < 0.5:
            continue
        shares = sum(w.slot.share for w in pool.workers.values() if not w.draining)
        if pool.service_s is None or not shares:
            return None
        longest = max(longest, left[name] * pool.service_s / shares)
    return longest


def capacities(pools: "Mapping[str, Pool]") -> list[Capacity]:
    """The table, of the steps that are measured. `pools` are in the order of the graph."""
    visits: dict[str, float] = {}
    table = []
    for name, pool in pools.items():
        before = pool.step.after
        visits[name] = sum(visits[b] * pools[b].fan_out(name) for b in before) if before else 1.0
        if pool.service_s is not None:
            workers = sum(w.slot.share for w in pool.workers.values() if not w.draining)
            table.append(
                Capacity(
                    step=name,
                    workers=workers,
                    tasks_per_s=1 / pool.service_s,
                    visits=visits[name],
                )
            )
    return table


def bottleneck(table: "list[Capacity]") -> str:
    """What is slowest, and what more workers for it would bring."""
    known = [line for line in table if line.workers > 0 and line.visits > 0]
    if not known:
        return ""
    slowest, *others = sorted(known, key=lambda line: line.inputs_per_s)
    rate = slowest.inputs_per_s
    plural = "" if slowest.workers == 1 else "s"
    told = (
        f"{slowest.step} is the slowest: {slowest.workers:g} worker{plural} for {rate:.3g} inputs/s"
    )
    if not others:
        return f"{told}; twice as many would do twice as much."
    next_ = others[0]
    gain = next_.inputs_per_s / rate
    wanted = math.ceil(next_.inputs_per_s * slowest.visits / slowest.tasks_per_s - 1e-6)
    if gain < 1.05:
        return f"{told}; {next_.step} is as slow, so the pools are balanced."
    return (
        f"{told}; give it {wanted} and expect {gain:.1f} times, until {next_.step} is the slowest."
    )
