"""A run over several processes: which part of a pack each holds, and what they add up.

Data parallelism gives every group of context-parallel ranks its own packs; context parallelism
splits each pack's tokens. Weights, optimizer and averages are whole on every rank and stay equal
bit for bit, since all ranks add up the same gradients and do the same with them. Rank 0 alone
writes, validates and talks to people.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from models.attention import Attention, local_attention
from models.family import NetworkConfig
from models.pack import PackLayout
from models.stdit import ATTENTIONS, STDiTConfig
from parallel.collectives import Channel
from parallel.context import Comm, ContextAttention, agree_on_pack
from parallel.groups import Groups
from parallel.layout import PackShare
from parallel.peers import BytePeers
from parallel.spatiotemporal import Halves
from parallel.topology import Topology
from parallel.traffic import Traffic
from parallel.transformer_engine import Heads, TransformerEngineAttention
from training.config import ParallelConfig

LONGEST_WAIT = timedelta(hours=1)
"""For rank 0, while it fits a tokenizer, validates, samples or saves."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among those of the run. One process alone sends nothing."""

    topology: Topology
    config: ParallelConfig
    groups: Groups | None = None
    """None for one process."""
    traffic: Traffic = field(default_factory=Traffic)

    @classmethod
    def join(cls, topology: Topology, config: ParallelConfig, device: torch.device) -> "Ranks":
        """Meets the other processes that torchrun started; every one of them must call this."""
        if topology.world_size == 1:
            return cls(topology=topology, config=config)
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=LONGEST_WAIT)
        groups = Groups.make(topology, config.timeout_s)
        return cls(topology=topology, config=config, groups=groups)

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and talks."""
        return self.topology.rank == 0

    @property
    def peers(self) -> BytePeers | None:
        """With whom the loader shares the reading of a pack."""
        cp = None if self.groups is None else self.groups.cp
        return None if cp is None else BytePeers(Channel(cp, self.traffic, "loader"))

    def attention(self, config: NetworkConfig) -> Any:
        """What a network of this shape is built with."""
        groups = self.groups
        if groups is None or groups.cp is None:
            return local_attention
        build = partial(self._one_attention, groups, config)
        comm = self.config.comm
        ways: list[Comm] = comm if isinstance(comm, list) else [comm]
        layers = range(config.num_layers)
        if isinstance(config, STDiTConfig):
            kinds = (*ATTENTIONS, "cross")
            return [
                {kind: build(f"blocks.{i}.{kind}", ways[i % len(ways)]) for kind in kinds}
                for i in layers
            ]
        return [build(f"blocks.{i}", ways[i % len(ways)]) for i in layers]

    def _one_attention(
        self, groups: Groups, config: NetworkConfig, layer: str, comm: Comm
    ) -> Attention:
        if self.config.attention == "transformer_engine":
            heads = Heads(
                num_q=config.num_heads,
                num_k=getattr(config, "num_kv_heads", config.num_heads),
                head_dim=config.hidden_size // config.num_heads,
            )
            return TransformerEngineAttention(groups, heads, comm=comm, fp8=self.config.fp8)
        return ContextAttention.build(
            groups, traffic=self.traffic, layer=layer, comm=comm, fp8=self.config.fp8
        )

    def share(self, config: NetworkConfig) -> Callable[[PackLayout], PackLayout] | None:
        """From a pack to the part of it that this rank holds, for a network of this shape.

        None where every rank holds whole packs. The callable raises `CollectiveError` on every
        rank where ranks were given different packs.
        """
        cp = None if self.groups is None else self.groups.cp
        if cp is None:
            return None
        channel = Channel(cp, self.traffic)

        def part_of(whole: PackLayout) -> PackLayout:
            agree_on_pack(whole, channel)
            if isinstance(config, STDiTConfig):
                return Halves(whole, channel).start(config.of_network())
            return PackShare.of(whole, self.topology.cp, self.topology.cp_rank)

        return part_of

    def add_up(self, tensors: list[Tensor]) -> None:
        """Each tensor becomes its sum over all ranks, in one collective a type."""
        if self.groups is None:
            return
        channel = self._everyone("gradients")
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in same])
            channel.all_reduce(flat, "all_reduce")
            sizes = [tensor.numel() for tensor in same]
            for tensor, part in zip(same, flat.split(sizes), strict=True):
                tensor.copy_(part.view_as(tensor))

    def total(self, values: list[float], *, per_pack: bool) -> list[float]:
        """Sums over all ranks; `per_pack` values are alike on the ranks that share a pack."""
        if self.groups is None:
            return values
        summed = torch.tensor(values, dtype=torch.float64)
        self._everyone("numbers").all_reduce(summed, "all_reduce.numbers")
        return (summed / (self.topology.cp if per_pack else 1)).tolist()

    def gather(self, value: Any) -> list[Any]:
        """What each rank holds, of any length, as JSON can say it."""
        if self.groups is None:
            return [value]
        parts = BytePeers(self._everyone("states")).all_gather(json.dumps(value).encode())
        return [json.loads(part) for part in parts]

    def _everyone(self, layer: str) -> Channel:
        assert self.groups is not None and self.groups.dp_cp is not None
        return Channel(self.groups.dp_cp, self.traffic, layer)

    def wait(self) -> None:
        """Until every rank is here."""
        if self.groups is not None:
            dist.barrier()
