"""How many workers each step gets: a pure function of what was measured and what there is.

The steps of a pipeline wait for the slowest, so the one time to make small is

    T = max over steps of work / workers,

work being the worker-seconds that the step has before it (items left times seconds per item; as
items fan out, each step has its own count). `solve` finds the least T whose pools fit on the nodes
(bisection, each trial packed node by node), which is max-min fair: no step gets more workers than
T needs, and what remains is spare. Spare processors go to steps that need no GPU, so that the steps
that do stay fed while times fluctuate.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from common.errors import ConfigError
from curation.engine.packing import Node, Room
from curation.stage import Resources

_EPS = 1e-9
_SHARE_STEP = 0.01
_ROUNDS = 48


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one step has before it."""

    name: str
    needs: Resources
    work_s: float | None
    """Worker-seconds at a whole share; None while nothing is measured."""
    setup_s: float = 0.0
    fixed: int | None = None
    most: int | None = None
    """Not more workers than there are items left."""
    sure: bool = True
    """Whether the work is known to a few percent."""
    fed_s: float = 0.0
    """For how long those after it have work waiting; 0 while it or they are not sure."""

    @property
    def min_share(self) -> float:
        """The least share of its GPU that a worker may have; 1 for what cannot be divided."""
        needs = self.needs
        if needs.min_gpus is None or not 0 < needs.gpus <= 1 or self.fixed is not None:
            return 1.0
        return min(1.0, needs.min_gpus / needs.gpus)


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Pools, and what they promise."""

    shares: Mapping[str, tuple[float, ...]]
    """For each step the shares of its workers, whole ones first."""
    finish_s: float | None
    """T; None while nothing is measured."""
    slowest: str | None
    """The step that sets T."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Why a pool has its size, where another reason than T decides."""


def finish_of(demands: Sequence[Demand], totals: Mapping[str, float]) -> tuple[float, str | None]:
    """T of pools with these total shares, and the step that sets it; unmeasured steps apart."""
    slowest: tuple[float, str | None] = (0.0, None)
    for demand in demands:
        if demand.work_s:
            total = totals.get(demand.name, 0.0)
            finish = demand.work_s / total if total else math.inf
            slowest = max(slowest, (finish, demand.name), key=lambda pair: pair[0])
    return slowest


def solve(
    demands: Sequence[Demand], nodes: Sequence[Node], *, headroom: float = 1.25
) -> Allocation:
    """The pools for the least T.

    Until every step on GPUs is measured, those that are keep the least they can, and so do the
    steps without. What is left of the GPUs meanwhile goes to the unmeasured step with the longest
    set-up: its workers come last, so they must be started first, and a model that loads longest is
    likely the heaviest.

    Args:
        headroom: how much faster than T needs steps without GPUs may be where processors are spare.
    Raises:
        ConfigError: for a step that fits on no node, or where the steps do not fit all at once.
    """
    demands = scaled_to_fit(demands, nodes)
    unknown = [d for d in demands if d.work_s is None]
    blind = [d for d in unknown if d.needs.gpus]
    kinds = {bool(d.needs.gpus) for d in unknown}
    held = {d.name for d in demands if bool(d.needs.gpus) in kinds}
    least = {d.name: _least(d) for d in demands}

    def pools(finish_s: float) -> dict[str, tuple[float, ...]]:
        return {d.name: least[d.name] if d.name in held else _shares(d, finish_s) for d in demands}

    by_size = _packing_order(demands)
    if _packed(by_size, pools(math.inf), nodes) is None:
        names = ", ".join(demand.name for demand in demands)
        raise ConfigError(
            f"one worker of each stage ({names}) does not fit on the cluster at once: "
            "add a node, or lower what the stages need"
        )
    free = [d for d in demands if d.work_s and d.name not in held]
    shares = pools(_least_time(free, by_size, pools, nodes))
    room = _packed(by_size, shares, nodes)
    assert room is not None
    totals = {name: sum(of) for name, of in shares.items()}
    finish_s, slowest = finish_of(free, totals)
    notes: dict[str, str] = {}
    if blind:
        first = max(blind, key=lambda d: (d.setup_s, d.name))
        _fill(first, shares, room, notes)
        for demand in blind:
            _make_whole(demand, shares, room)
    elif not held:
        _spare(demands, shares, room, finish_s / headroom, notes)
    return Allocation(
        shares=shares, finish_s=finish_s if free else None, slowest=slowest, notes=notes
    )


def scaled_to_fit(demands: Sequence[Demand], nodes: Sequence[Node]) -> list[Demand]:
    """The demands as these nodes can meet them. Processors are divisible time: where one worker of
    each step does not fit, they count for less. GPUs, memory and custom resources do not bend.

    Raises `ConfigError` for a step that fits on no node.
    """
    bent = []
    for demand in demands:
        widest = max((n.cpus for n in nodes if n.suits(demand.needs)), default=0.0)
        needs = replace(demand.needs, cpus=min(demand.needs.cpus, widest))
        if not Room(nodes).take(needs, demand.min_share):
            raise ConfigError(f"stage {demand.name} fits on no node: {_told(demand.needs)}")
        bent.append(replace(demand, needs=needs))
    least = {d.name: _least(d) for d in bent}
    scale = 1.0
    while scale > 1e-3:
        scaled = [replace(d, needs=replace(d.needs, cpus=d.needs.cpus * scale)) for d in bent]
        if _packed(_packing_order(scaled), least, nodes) is not None:
            return scaled
        scale *= 0.9
    return bent


def _least(demand: Demand) -> tuple[float, ...]:
    if demand.fixed is not None:
        return (1.0,) * demand.fixed
    if demand.work_s is None and demand.min_share < 1:
        return (max(demand.min_share, 0.5),)  # to be measured; the rest is added once it is known
    return (demand.min_share,)


def _shares(demand: Demand, finish_s: float) -> tuple[float, ...]:
    """The fewest workers that do a step's work in that time."""
    if demand.fixed is not None or demand.work_s is None or math.isinf(finish_s):
        return _least(demand)
    total = demand.work_s / max(finish_s, _EPS)
    most = max(1, demand.most) if demand.most is not None else math.inf
    if demand.min_share == 1:
        return (1.0,) * int(min(most, max(1, math.ceil(total - 1e-6))))
    whole = int(min(most, math.floor(total + 1e-6)))
    rest = total - whole
    if whole == most or (whole and rest < 1e-6):
        return (1.0,) * whole
    rest = max(demand.min_share, math.ceil(rest / _SHARE_STEP - 1e-3) * _SHARE_STEP)
    return (*(1.0,) * whole, min(1.0, round(rest, 6)))


def _packing_order(demands: Sequence[Demand]) -> list[Demand]:
    """Those with the fewest places first: GPUs, then what only some nodes have, then size."""
    return sorted(
        demands,
        key=lambda d: (
            -d.needs.gpus * d.min_share,
            -len(d.needs.custom) - len(d.needs.labels),
            -d.needs.cpus,
            d.name,
        ),
    )


def _packed(
    demands: Sequence[Demand], shares: Mapping[str, tuple[float, ...]], nodes: Sequence[Node]
) -> Room | None:
    """What is left once everything is placed; None where it does not fit."""
    room = Room(nodes)
    parts = []
    for demand in demands:
        whole = sum(share == 1 for share in shares[demand.name])
        if len(room.take(demand.needs, 1.0, whole)) < whole:
            return None
        parts += [(share, demand) for share in shares[demand.name] if share != 1]
    for share, demand in sorted(parts, key=lambda part: -part[0] * part[1].needs.gpus):
        if not room.take(demand.needs, share):
            return None
    return room


def _least_time(
    free: Sequence[Demand],
    by_size: Sequence[Demand],
    pools: Callable[[float], Mapping[str, tuple[float, ...]]],
    nodes: Sequence[Node],
) -> float:
    if not free:
        return math.inf
    high = max(d.work_s or 0.0 for d in free) / min(d.min_share for d in free)
    low = min(d.work_s or 0.0 for d in free) * 1e-7 + _EPS
    for _ in range(_ROUNDS):
        middle = math.sqrt(low * high)
        if _may_fit(pools(middle), by_size, nodes) and _packed(by_size, pools(middle), nodes):
            high = middle
        else:
            low = middle
    return high


def _may_fit(
    shares: Mapping[str, tuple[float, ...]], demands: Sequence[Demand], nodes: Sequence[Node]
) -> bool:
    """A quick no by sums, so that hopeless trials are not packed."""
    cpus = sum(d.needs.cpus * len(shares[d.name]) for d in demands)
    gpus = sum(d.needs.gpus * sum(shares[d.name]) for d in demands)
    return cpus <= sum(n.cpus for n in nodes) + 1e-6 and gpus <= sum(n.gpus for n in nodes) + 1e-6


def _fill(
    demand: Demand, shares: dict[str, tuple[float, ...]], room: Room, notes: dict[str, str]
) -> None:
    if demand.fixed is not None:
        return
    most = math.inf if demand.most is None else demand.most
    while len(shares[demand.name]) < most and room.take(demand.needs, 1.0):
        shares[demand.name] = (1.0, *shares[demand.name])
        notes[demand.name] = "not measured yet, and of those the longest to load"


def _make_whole(demand: Demand, shares: dict[str, tuple[float, ...]], room: Room) -> None:
    """The rest of the GPU on which a step is to be measured, where nobody else has taken it."""
    rest = 1.0 - sum(shares[demand.name])
    if rest >= demand.min_share and room.take(demand.needs, rest):
        shares[demand.name] = (*shares[demand.name], rest)


def _spare(
    demands: Sequence[Demand],
    shares: dict[str, tuple[float, ...]],
    room: Room,
    finish_s: float,
    notes: dict[str, str],
) -> None:
    """Spare processors to the steps without GPUs, always to the one with the least headroom."""
    if not any(d.needs.gpus for d in demands):
        return
    waiting = [d for d in demands if d.work_s and not d.needs.gpus and d.fixed is None]
    while waiting:
        demand = min(waiting, key=lambda d: (len(shares[d.name]) / (d.work_s or 1), d.name))
        count = len(shares[demand.name])
        enough = count >= (demand.work_s or 0) / max(finish_s, _EPS) - 1e-6
        full = demand.most is not None and count >= demand.most
        if enough or full or not room.take(demand.needs, 1.0):
            waiting.remove(demand)
            continue
        shares[demand.name] = (*shares[demand.name], 1.0)
        notes[demand.name] = "headroom, so that the steps on GPUs stay fed"


def _told(needs: Resources) -> str:
    """A stage's needs in words."""
    parts = [f"{needs.cpus:g} CPUs"] if needs.cpus else []
    parts += [f"{needs.gpus:g} GPUs"] if needs.gpus else []
    parts += [f"{needs.memory_bytes / 2**30:.1f} GiB"] if needs.memory_bytes else []
    parts += [f"{amount:g} {key}" for key, amount in needs.custom.items()]
    parts += [f"{key}={value}" for key, value in needs.labels.items()]
    return "it needs " + ", ".join(parts)
