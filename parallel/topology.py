"""Where this process stands: one frozen value, made once, passed to whoever needs it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The rank of this process and the sizes of the parallel axes.

    The product of the axes is the world size. Raises `ConfigError` where it is not, or where an
    axis is asked for that this version does not run.
    """

    rank: int = 0
    world_size: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank {self.rank} does not lie in a world of {self.world_size}")
        if self.dp != self.world_size:
            raise ConfigError(
                f"dp={self.dp} does not fill a world of {self.world_size} processes: "
                "dp must be the number of processes"
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Topology":
        """Reads what torchrun sets; one process where it sets nothing."""
        env = os.environ if environment is None else environment
        world_size = int(env.get("WORLD_SIZE", "1"))
        return cls(rank=int(env.get("RANK", "0")), world_size=world_size, dp=world_size)

    @property
    def dp_rank(self) -> int:
        return self.rank
