"""Where this process stands: one frozen value, made once, passed to whoever needs it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import ConfigError

SIZES = ("tp", "ulysses", "ring", "dp")
"""The sizes of a topology, along which ranks count from the fastest to the slowest."""

AXES = {
    "tp": ("tp",),
    "ulysses": ("ulysses",),
    "ring": ("ring",),
    "cp": ("ulysses", "ring"),
    "dp": ("dp",),
    "dp_cp": ("ulysses", "ring", "dp"),
}
"""The groups of ranks that talk, each by the sizes that vary within it."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The rank of this process and the sizes of the parallel axes.

    Ranks count fastest along tp, then ulysses, then ring, then dp: the axes that talk most stay
    within a machine. Context parallelism is ring x ulysses; rank c of it holds the c-th part of
    every sequence. The product of the axes is the world size.

    Raises `ConfigError` where it is not, saying what to change.
    """

    rank: int = 0
    world_size: int = 1
    tp: int = 1
    ulysses: int = 1
    ring: int = 1
    dp: int = 1
    ranks_per_node: int | None = None
    """Ranks that share a machine; None where that is not known. What exchanges most, tp and
    ulysses, must stay within one."""

    def __post_init__(self) -> None:
        for axis in ("world_size", "tp", "ulysses", "ring", "dp"):
            if getattr(self, axis) < 1:
                raise ConfigError(f"{axis} must be at least 1, got {getattr(self, axis)}")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank {self.rank} does not lie in a world of {self.world_size}")
        model = self.tp * self.cp
        if self.dp * model != self.world_size:
            mend = (
                f"set dp={self.world_size // model}"
                if self.world_size % model == 0
                else f"start a multiple of {model} processes, or make tp, ulysses or ring smaller"
            )
            raise ConfigError(
                f"dp={self.dp} does not fill a world of {self.world_size} processes with "
                f"tp={self.tp} x ulysses={self.ulysses} x ring={self.ring}: {mend}"
            )

        self._check_nodes()

    def _check_nodes(self) -> None:
        close, node = self.tp * self.ulysses, self.ranks_per_node
        if node is None or node >= self.world_size or node % close == 0:
            return
        fitting = [n for n in range(1, self.ulysses) if node % (self.tp * n) == 0]
        mend = (
            f"set ulysses={fitting[-1]} and make ring larger in turn"
            if fitting
            else f"set tp to a divisor of {node}"
        )
        raise ConfigError(
            f"tp={self.tp} x ulysses={self.ulysses} groups {close} ranks, which do not stay within "
            f"machines of {node}: {mend}"
        )

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        tp: int = 1,
        ulysses: int = 1,
        ring: int = 1,
    ) -> "Topology":
        """Reads what torchrun sets; one process where it sets nothing. dp takes what is left."""
        env = os.environ if environment is None else environment
        world_size = int(env.get("WORLD_SIZE", "1"))
        node = env.get("LOCAL_WORLD_SIZE")
        return cls(
            rank=int(env.get("RANK", "0")),
            world_size=world_size,
            tp=tp,
            ulysses=ulysses,
            ring=ring,
            dp=max(world_size // max(tp * ulysses * ring, 1), 1),
            ranks_per_node=None if node is None else int(node),
        )

    @property
    def cp(self) -> int:
        return self.ulysses * self.ring

    @property
    def ulysses_rank(self) -> int:
        return self.rank // self.tp % self.ulysses

    @property
    def ring_rank(self) -> int:
        return self.rank // (self.tp * self.ulysses) % self.ring

    @property
    def cp_rank(self) -> int:
        return self.ring_rank * self.ulysses + self.ulysses_rank

    @property
    def dp_rank(self) -> int:
        return self.rank // (self.tp * self.cp)

    def ranks_of(self, axis: str) -> tuple[int, ...]:
        """The group of this rank along `axis` (a key of `AXES`), in the order of its parts."""
        group, stride = [self.rank], 1
        for name in SIZES:
            size = getattr(self, name)
            if name in AXES[axis]:
                place = self.rank // stride % size
                group = [rank + (i - place) * stride for i in range(size) for rank in group]
            stride *= size
        return tuple(group)
