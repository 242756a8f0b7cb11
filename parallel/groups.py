"""The process groups of a topology, made once and passed to whoever talks."""

import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from parallel.topology import AXES, SIZES, Topology


@dataclass(frozen=True, kw_only=True)
class Groups:
    """A process group per axis of `topology.AXES`, in the order of the parts along it.

    An axis of size 1 has none: nothing is sent along it. They come from Megatron-Core's grid, so
    its modules take them as they are; its `parallel_state`, which would make them global, stays
    unused.
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
        sizes = {size: getattr(topology, size) for size in SIZES}
        grid = _grid()(list(sizes.values()), list(sizes))
        # Axes that span the same ranks share a group: a second would bring more connections only.
        made: dict[tuple[str, ...], dist.ProcessGroup] = {}
        mine: dict[str, dist.ProcessGroup | None] = {}
        for axis, spanned in AXES.items():
            varying = tuple(size for size in spanned if sizes[size] > 1)
            if varying and varying not in made:
                timeout = timedelta(seconds=timeout_s)
                made[varying] = grid.create_pg(list(varying), timeout=timeout)
            mine[axis] = made.get(varying)
        return cls(topology=topology, **mine)


def _grid() -> Any:
    with warnings.catch_warnings():
        # Of packages that Megatron-Core looks for, and that nothing here uses.
        warnings.simplefilter("ignore")
        from megatron.core.hyper_comm_grid import HyperCommGrid
    return HyperCommGrid
