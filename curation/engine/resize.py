"""From the pools that are there to those that should be: what to start, what to drain, and why."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from curation.engine.balance import Allocation, Demand, finish_of, scaled_to_fit, solve
from curation.engine.packing import Node, Room, Slot

MIN_GAIN = 0.03
"""The share of the time left that a change must save, set-up counted."""
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
    min_gain: float = MIN_GAIN,
) -> Plan:
    """What to change. Workers are drained only to make room for others, and only where the time
    saved, set-ups counted, is worth it; spare processors are given out at once.

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
    worth, gain = _worth(demands, allocation, now, min_gain)
    for demand in sorted(bent.values(), key=lambda d: (-d.setup_s, -d.needs.gpus, d.name)):
        there = now.get(demand.name, 0.0)
        if there and (demand.work_s or math.inf) / there < _WORTH_SETUPS * demand.setup_s:
            continue  # the work is done before another worker could help
        missing = _missing(demand, allocation.shares[demand.name], there)
        for share in missing:
            found = room.take(demand.needs, share)
            if found:
                reason = allocation.notes.get(demand.name) or gain.get(demand.name, "first worker")
                made.starts.append(Start(step=demand.name, slot=found[0], reason=reason))
            elif worth or not there:
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
    if not made.starts and not made.retires:
        made.retires += [
            cut
            for demand in bent.values()
            if demand.may_trim
            for cut in _trimmed(demand, allocation.shares[demand.name], staying[demand.name])
        ]
    return made


def _worth(
    demands: Sequence[Demand], allocation: Allocation, now: Mapping[str, float], min_gain: float
) -> tuple[bool, dict[str, str]]:
    """Whether the time saved pays for the set-ups, and each step's part in it, in words."""
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
    if allocation.notes and allocation.finish_s is None:
        return True, reasons
    blind = any(d.work_s is None and d.needs.gpus for d in demands)
    return blind or after < before * (1 - min_gain), reasons


def _missing(demand: Demand, shares: Sequence[float], now: float) -> list[float]:
    """Shares of the workers to add, so that they come to the wanted total."""
    lacking = sum(shares) - now
    if demand.min_share == 1:
        return [1.0] * max(0, round(lacking))
    whole = max(0, math.floor(lacking + 1e-6))
    rest = lacking - whole
    # What is there will do if it is nearly enough.
    if rest < (1e-6 if not now + whole else 0.02):
        return [1.0] * whole
    return [*[1.0] * whole, max(demand.min_share, round(math.ceil(rest * 100 - 1e-6) / 100, 2))]


def _trimmed(demand: Demand, shares: Sequence[float], members: Sequence[Member]) -> list[Retire]:
    """The worker to replace by one with a smaller share, where a pool is too large for what was
    measured since it was cut."""
    surplus = sum(m.slot.share for m in members) - sum(shares)
    if surplus < MIN_GAIN * sum(shares) or len(members) < 2:
        return []
    cut = [m for m in members if m.slot.share - surplus >= demand.min_share]
    if not cut:
        return []
    member = min(cut, key=lambda m: (m.slot.share, m.worker_id))
    reason = (
        f"{sum(shares):.2f} are enough; its place goes to one of {member.slot.share - surplus:.2f}"
    )
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
