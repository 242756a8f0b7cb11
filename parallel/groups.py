"""The process groups of a topology, made once and passed to whoever talks."""

from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch.distributed as dist

from parallel.topology import AXES, Topology


@dataclass(frozen=True, kw_only=True)
class Groups:
    """A process group per axis of `topology.AXES`, in the order of the parts along it.

    An axis of size 1 has none: nothing is sent along it. Megatron-Core's modules take groups as
    arguments, so these serve it as they are; its own `parallel_state` would make them global, and
    does not know ring and Ulysses as axes of their own beside the group over both.
    """

    topology: Topology
    tp: dist.ProcessGroup | None
    ulysses: dist.ProcessGroup | None
    ring: dist.ProcessGroup | None
    cp: dist.ProcessGroup | None
    dp: dist.ProcessGroup | None
    dp_cp: dist.ProcessGroup | None

    @classmethod
    def make(cls, topology: Topology, timeout_s: float) -> "Groups":
        """Every rank of the default group must call this, with the same sizes.

        A collective whose peer does not answer within `timeout_s` is an error on the ranks that
        wait for it.
        """
        if dist.get_world_size() != topology.world_size:
            raise ValueError(
                f"the topology is of {topology.world_size} ranks, the default process group "
                f"of {dist.get_world_size()}"
            )
        # Ranks of equal groups share one: a second set of connections would bring nothing.
        made: dict[tuple[int, ...], dist.ProcessGroup] = {}
        mine: dict[str, dist.ProcessGroup | None] = dict.fromkeys(AXES)
        for axis in AXES:
            for ranks in topology.all_groups(axis):
                if len(ranks) == 1:
                    continue
                if ranks not in made:
                    group = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s))
                    # A rank outside of it gets a marker, which it keeps only to make none twice.
                    made[ranks] = cast(dist.ProcessGroup, group)
                if topology.rank in ranks:
                    mine[axis] = made[ranks]
        return cls(topology=topology, **mine)
