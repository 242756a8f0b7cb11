"""What fits on which node: CPUs, memory and custom resources by sum, GPUs one by one."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from curation.stage import Resources

_EPS = 1e-9


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine as the engine sees it."""

    node_id: str
    cpus: float
    gpus: int = 0
    memory_bytes: float = math.inf
    custom: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def suits(self, needs: Resources) -> bool:
        """Whether the labels are those that a stage asks for."""
        return all(self.labels.get(key) == value for key, value in needs.labels.items())


@dataclass(frozen=True, kw_only=True)
class Slot:
    """What one worker holds of a node."""

    node_id: str
    needs: Resources
    share: float
    gpus: tuple[int, ...]
    """Indices of the GPUs it is on."""


class Room:
    """What is free. Workers go where the least of other kinds is wasted, then where it is tightest.

    A worker's share scales the GPUs that its stage needs, and nothing else.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._sums = {name: _sums(node) for name, node in self._nodes.items()}
        self._gpus = {name: [1.0] * node.gpus for name, node in self._nodes.items()}

    def copy(self) -> "Room":
        other = Room(())
        other._nodes = self._nodes
        other._sums = {name: dict(sums) for name, sums in self._sums.items()}
        other._gpus = {name: list(gpus) for name, gpus in self._gpus.items()}
        return other

    def take(self, needs: Resources, share: float = 1.0, count: int = 1) -> list[Slot]:
        """Room for up to `count` workers; fewer slots where there is no more."""
        slots: list[Slot] = []
        for name in self._order(needs):
            while len(slots) < count and (slot := self._take_on(name, needs, share)) is not None:
                slots.append(slot)
            if len(slots) == count:
                break
        return slots

    def take_at(self, slot: Slot) -> None:
        """Notes a worker that is there already; a node that has gone is passed over."""
        self._change(slot, -1.0)

    def give_back(self, slot: Slot) -> None:
        self._change(slot, 1.0)

    def _order(self, needs: Resources) -> list[str]:
        def waste(name: str) -> tuple[int, float, str]:
            node = self._nodes[name]
            unused = int(node.gpus > 0 and not needs.gpus)
            unused += sum(key not in needs.custom for key in node.custom)
            return unused, self._sums[name]["cpus"], name

        return sorted((n for n in self._nodes if self._nodes[n].suits(needs)), key=waste)

    def _take_on(self, name: str, needs: Resources, share: float) -> Slot | None:
        sums = self._sums[name]
        if any(sums.get(key, 0.0) + _EPS < amount for key, amount in _amounts(needs).items()):
            return None
        gpus = self._gpus_for(name, needs.gpus * share)
        if gpus is None:
            return None
        slot = Slot(node_id=name, needs=needs, share=share, gpus=gpus)
        self.take_at(slot)
        return slot

    def _gpus_for(self, name: str, wanted: float) -> tuple[int, ...] | None:
        if wanted <= 0:
            return ()
        free = self._gpus[name]
        if wanted > 1 + _EPS:
            whole = [i for i, left in enumerate(free) if left > 1 - _EPS]
            return tuple(whole[: round(wanted)]) if len(whole) >= round(wanted) else None
        fits = [(left, i) for i, left in enumerate(free) if left + _EPS >= wanted]
        return (min(fits)[1],) if fits else None

    def _change(self, slot: Slot, sign: float) -> None:
        if slot.node_id not in self._nodes:
            return
        sums = self._sums[slot.node_id]
        for key, amount in _amounts(slot.needs).items():
            sums[key] = sums.get(key, 0.0) + sign * amount
        wanted = slot.needs.gpus * slot.share
        for index in slot.gpus:
            self._gpus[slot.node_id][index] += sign * wanted / len(slot.gpus)


def _sums(node: Node) -> dict[str, float]:
    kinds = {f"custom {key}": float(amount) for key, amount in node.custom.items()}
    return {"cpus": node.cpus, "memory": node.memory_bytes, **kinds}


def _amounts(needs: Resources) -> dict[str, float]:
    found = {f"custom {key}": float(amount) for key, amount in needs.custom.items()}
    if needs.cpus:
        found["cpus"] = needs.cpus
    if needs.memory_bytes:
        found["memory"] = float(needs.memory_bytes)
    return found
