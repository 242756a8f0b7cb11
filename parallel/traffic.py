"""What was sent between ranks, counted where it is sent."""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Sent:
    """Collectives of one kind that this rank took part in."""

    calls: int = 0
    num_bytes: int = 0
    """Sent by this rank to others; what a rank keeps for itself is not counted."""


@dataclass
class Traffic:
    """A ledger of collectives by layer and name. Whoever sends is given one; there is no global.

    The names say the direction: what a backward pass sends ends with `.backward`.
    """

    sent: defaultdict[tuple[str, str], Sent] = field(default_factory=lambda: defaultdict(Sent))
    """By (layer, name of the collective)."""

    def record(self, layer: str, name: str, num_bytes: int) -> None:
        entry = self.sent[layer, name]
        entry.calls += 1
        entry.num_bytes += num_bytes

    def by_name(self) -> dict[str, tuple[int, int]]:
        """`(calls, bytes)` of each collective, over all layers."""
        total: dict[str, tuple[int, int]] = {}
        for (_, name), entry in self.sent.items():
            calls, num_bytes = total.get(name, (0, 0))
            total[name] = (calls + entry.calls, num_bytes + entry.num_bytes)
        return total

    def clear(self) -> None:
        self.sent.clear()
