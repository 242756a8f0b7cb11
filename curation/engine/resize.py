"""From the pools that are there to those that should be: what to start, what to drain, and why."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from curation.engine.balance import Allocation, Demand, finish_of, scaled_to_fit, solve
from curation.engine.packing import Node, Room, Slot

MIN_GAIN = 0.03
"""The share of the time left that a change must save, set-up counted."""
FIRST = "first worker"
_MIN_GAIN_UNSURE = 0.15
"""The same while a step is measured by a few items only."""
_PATIENCE_S = 30.0
"""For how long what waits after a divisible pool must last, so that the pool may lack a little."""
_TRIM = 0.05
"""The share of a divisible pool that must be too much, so that it is cut. What is measured by then
errs by about a third of it."""
_WORTH_SETUPS = 2.0
"""Set-ups for which a step must still have work, so that it gets another worker."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A worker of a pool."""

    worker_id: int
    slot: Slot
    idle: bool
    draining: bool


@dataclass(frozen=True, kw_only=True)
class Start:
    step: str
    slot: Slot
    reason: str


@dataclass(frozen=True, kw_only=True)
class Retire:
    step: str
    worker_id: int
    reason: str


@dataclass(kw_only=True)
class Plan:
    """Changes that can be made now. A start that waits for a drained worker's place is found again
    by the plan after that worker has gone."""

    allocation: Allocation
    starts: list[Start] = field(default_factory=list)
    retires: list[Retire] = field(default_factory=list)


def plan(
    demands: Sequence[Demand],
    nodes: Sequence[Node],
    pools: Mapping[str, Sequence[Member]],
    *,
    headroom: float = 1.25,
) -> Plan:
    """What to change. Workers are drained only to make room for others, and only where the time
    saved, set-ups counted, is worth it; spare processors are given out at once. For a step that is
    not measured yet, others make room for its first worker and no more.

    Args:
        demands: of steps that are not finished.
        pools: workers by step, those of finished steps and draining ones too, which hold room.
    """
    allocation = solve(demands, nodes, headroom=headroom)
    made = Plan(allocation=allocation)
    room = Room(nodes)
    for members in pools.values():
        for member in members:
            room.take_at(member.slot)
    staying = {name: [m for m in members if not m.draining] for name, members in pools.items()}
    now = {name: sum(m.slot.share for m in members) for name, members in staying.items()}
    bent = {d.name: d for d in scaled_to_fit(demands, nodes)}
    worth, gain = _worth(demands, allocation, now)
    for demand in sorted(bent.values(), key=lambda d: (-d.setup_s, -d.needs.gpus, d.name)):
        there = now.get(demand.name, 0.0)
        if there and (demand.work_s or math.inf) / there < _WORTH_SETUPS * demand.setup_s:
            continue  # the work is done before another worker could help
        missing = _missing(demand, allocation.shares[demand.name], there)
        for number, share in enumerate(missing):
            found = room.take(demand.needs, share)
            if found:
                reason = allocation.notes.get(demand.name) or gain.get(demand.name, FIRST)
                reason = reason if there or number else FIRST
                made.starts.append(Start(step=demand.name, slot=found[0], reason=reason))
            elif not there or (worth and demand.work_s):
                victims = _victims(demand, share, bent, staying, now, allocation, room)
                for name, member in victims:
                    staying[name].remove(member)
                    now[name] -= member.slot.share
                    reason = f"makes room for {demand.name}"
                    made.retires.append(
                        Retire(step=name, worker_id=member.worker_id, reason=reason)
                    )
                if not victims:
                    break
    # First those that fill the queues while the others of a large pool still load.
    made.starts.sort(key=lambda start: start.reason != FIRST)
    if not made.starts and not made.retires:
        made.retires += [
            cut
            for demand in bent.values()
            for cut in _trimmed(demand, allocation, staying[demand.name])
        ]
    return made


def _worth(
    demands: Sequence[Demand], allocation: Allocation, now: Mapping[str, float]
) -> tuple[bool, dict[str, str]]:
    """Whether the time saved pays for the set-ups, and each step's part in it, in words."""
    min_gain = MIN_GAIN if all(d.sure for d in demands if d.work_s) else _MIN_GAIN_UNSURE
    before, slowest = finish_of(demands, now)
    after, reasons = 0.0, {}
    for demand in demands:
        if not demand.work_s:
            continue
        old, new = now.get(demand.name, 0.0), sum(allocation.shares[demand.name])
        finish = demand.work_s / min(old, new) if min(old, new) else math.inf
        if new > old:
            late = max(0.0, demand.work_s - old * demand.setup_s)
            finish = min(finish, demand.setup_s + late / new)
        after = max(after, finish)
        if new > old:
            reasons[demand.name] = (
                f"{demand.work_s:.0f} worker-seconds left and {old:g} workers; "
                f"the slowest is {slowest}"
            )
    return after < before * (1 - min_gain), reasons


def _missing(demand: Demand, shares: Sequence[float], now: float) -> list[float]:
    """Shares of the workers to add, so that they come to the wanted total."""
    if not now:
        return list(shares)
    lacking = sum(shares) - now
    if demand.min_share == 1:
        return [1.0] * max(0, round(lacking))
    whole = max(0, math.floor(lacking + 1e-6))
    rest = lacking - whole
    # What is there will do if it is nearly enough, and while those after it lack nothing.
    if rest < (0.1 * now if demand.fed_s * now >= _PATIENCE_S * rest else 0.02):
        return [1.0] * whole
    return [*[1.0] * whole, max(demand.min_share, round(math.ceil(rest * 100 - 1e-6) / 100, 2))]


def _trimmed(demand: Demand, allocation: Allocation, members: Sequence[Member]) -> list[Retire]:
    """The worker to replace by one with a smaller share, where a pool is too large for what was
    measured since it was cut, and for long enough that the set-up pays. Meanwhile those after it
    live on what waits for them."""
    wanted = sum(allocation.shares[demand.name])
    surplus = sum(m.slot.share for m in members) - wanted
    if surplus < _TRIM * wanted or len(members) < 2:
        return []
    cut = [m for m in members if m.slot.share - surplus >= demand.min_share]
    if not cut:
        return []
    member = min(cut, key=lambda m: (m.slot.share, m.worker_id))
    lost_s = demand.setup_s * member.slot.share
    saved_s = surplus * (allocation.finish_s or 0.0)
    if saved_s < _WORTH_SETUPS * lost_s or demand.fed_s * wanted <= lost_s:
        return []
    reason = f"{wanted:.2f} are enough; its place goes to one of {member.slot.share - surplus:.2f}"
    return [Retire(step=demand.name, worker_id=member.worker_id, reason=reason)]


def _victims(
    demand: Demand,
    share: float,
    demands: Mapping[str, Demand],
    staying: Mapping[str, Sequence[Member]],
    now: Mapping[str, float],
    allocation: Allocation,
    room: Room,
) -> list[tuple[str, Member]]:
    """Workers beyond what their steps should have, whose going makes room; idle ones first."""
    candidates = []
    for name, members in staying.items():
        if name == demand.name:
            continue
        target = sum(allocation.shares[name]) if name in demands else 0.0
        spare = now[name] - target
        for member in sorted(members, key=lambda m: (not m.idle, m.slot.share, -m.worker_id)):
            helps = member.slot.needs.gpus if demand.needs.gpus else member.slot.needs.cpus
            if helps and member.slot.share <= spare + 0.02:
                candidates.append((name, member))
                spare -= member.slot.share
    chosen: list[tuple[str, Member]] = []
    trial = room.copy()
    for name, member in sorted(candidates, key=lambda c: (not c[1].idle, -c[1].worker_id)):
        chosen.append((name, member))
        trial.give_back(member.slot)
        if trial.take(demand.needs, share):
            for _, freed in chosen:
                room.give_back(freed.slot)
            room.take(demand.needs, share)
            return chosen
    return []
