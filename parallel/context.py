"""Context parallelism: one attention callable for sequences that are split over ranks."""

import zlib
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from models.attention import Layout, Packed, local_attention
from models.pack import PackLayout
from parallel.blocks import BlockAttention, GatherTransport, RingTransport, Transport
from parallel.collectives import Channel
from parallel.groups import Groups
from parallel.kernels.base import AnyKernel
from parallel.layout import ShardedDense, ShardedPacked
from parallel.traffic import Traffic
from parallel.ulysses import exchange_heads

Transfer = Literal["p2p", "all_gather"]
TRANSPORTS: dict[Transfer, Transport] = {"p2p": RingTransport(), "all_gather": GatherTransport()}

Comm = Literal["p2p", "all_gather", "a2a", "a2a+p2p", "a2a+all_gather"]
"""How a layer's attention goes over the context-parallel ranks: keys and values around a ring, or
gathered; tokens for heads (a2a); or tokens for heads within `ulysses` ranks and the other between
them."""


def agree_on_pack(share: PackLayout, channel: Channel) -> None:
    """Raises `CollectiveError` on every rank where ranks were given different packs.

    One small collective for a pack, before anything is made of it: all sizes that layers send
    follow from the pack and the network, so none of them needs a check of its own.
    """
    facts = {
        "numbers of samples": len(share.grids),
        "numbers of tokens": sum(share.lens_whole),
        "numbers of text tokens": sum(share.lens_text),
        "packs (by checksum)": zlib.crc32(repr((share.grids, share.lens_text)).encode()),
    }
    channel.agree(facts, "agree_on_pack", share.device)


@dataclass(frozen=True, kw_only=True)
class ContextAttention:
    """`attention(q, k, v, layout)` over ring x ulysses ranks, for `models`.

    A `ShardedPacked` or `ShardedDense` layout says that the tensors are this rank's part: the
    result is this rank's part of the attention over all parts. A plain layout says that the keys
    are whole on every rank, as text is: attention is local and nothing is sent.

    Part c lies on ring rank c // ulysses and Ulysses rank c % ulysses. With both channels None it
    is `local_attention`.
    """

    ulysses: Channel | None = None
    ring: Channel | None = None
    transfer: Transfer = "p2p"
    """How keys and values go around the ring."""
    kernel: AnyKernel | None = None
    """None takes the fitting one."""
    fp8: bool = False
    """Rounds q, k and v to 8 bits in the forward pass, before keys and values go around the ring.
    Heads that are exchanged (a2a) are sent as they are, and rounded after."""
    blocks: BlockAttention | None = field(init=False)
    """Over the ring; None where all is local and nothing asks for a kernel."""
    verify: bool = False
    """Before each attention the ranks compare what they hold, at the cost of a small collective.
    Without it, ranks that were given different packs fail as their backend pleases."""

    def __post_init__(self) -> None:
        blocks = None
        if self.ring is not None or self.kernel is not None or self.fp8:
            blocks = BlockAttention(
                channel=self.ring,
                transport=TRANSPORTS[self.transfer],
                kernel=self.kernel,
                fp8=self.fp8,
            )
        object.__setattr__(self, "blocks", blocks)

    @classmethod
    def build(
        cls,
        groups: Groups,
        *,
        traffic: Traffic,
        layer: str,
        comm: Comm = "a2a+p2p",
        kernel: AnyKernel | None = None,
        fp8: bool = False,
        verify: bool = False,
    ) -> "ContextAttention":
        """For one layer, over the groups of this rank. What is sent is recorded in `traffic`.

        Layers may differ in `comm`: whichever it is, part c of a sequence lies on rank c.
        """
        exchanged, _, moved = comm.rpartition("+")
        ulysses, ring = groups.ulysses, groups.ring
        if comm == "a2a":
            ulysses, ring = groups.cp, None
        elif not exchanged:
            ulysses, ring = None, groups.cp
        return cls(
            ulysses=ulysses and Channel(ulysses, traffic, layer),
            ring=ring and Channel(ring, traffic, layer),
            transfer="all_gather" if moved == "all_gather" else "p2p",
            kernel=kernel,
            fp8=fp8,
            verify=verify,
        )

    @property
    def num_parts(self) -> int:
        return (self.ring.size if self.ring else 1) * (self.ulysses.size if self.ulysses else 1)

    @property
    def part(self) -> int:
        ulysses_rank, ulysses_size = (
            (self.ulysses.rank, self.ulysses.size) if self.ulysses else (0, 1)
        )
        return (self.ring.rank if self.ring else 0) * ulysses_size + ulysses_rank

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Shape of `q`. Raises `ValueError` where the layout does not fit the ranks or tensors."""
        if isinstance(layout, ShardedDense):
            rows = layout.packed(q.shape[0])
            return self(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), rows).reshape(q.shape)
        if not isinstance(layout, ShardedPacked):
            return local_attention(q, k, v, layout)
        if (layout.num_parts, layout.part) != (self.num_parts, self.part):
            raise ValueError(
                f"the layout is of part {layout.part} of {layout.num_parts}, this rank holds "
                f"part {self.part} of {self.num_parts}"
            )
        if q.shape[0] != sum(layout.lens_q) or k.shape[0] != sum(layout.lens_k):
            raise ValueError(
                f"part {layout.part} of the layout holds {sum(layout.lens_q)} q and "
                f"{sum(layout.lens_k)} k tokens, the tensors {q.shape[0]} and {k.shape[0]}"
            )
        if self.verify:
            self._agree(q, k, layout)
        if self.ulysses is None:
            return self._over_ring(q, k, v, layout)
        return exchange_heads(q, k, v, layout, self.ulysses, self._over_ring)

    def _over_ring(self, q: Tensor, k: Tensor, v: Tensor, layout: ShardedPacked) -> Tensor:
        if self.blocks is None:
            return local_attention(q, k, v, Packed(layout.lens_q, layout.lens_k, layout.causal))
        return self.blocks(q, k, v, layout)

    def _agree(self, q: Tensor, k: Tensor, layout: ShardedPacked) -> None:
        split = repr((layout.parts_q, layout.parts_k, layout.causal))
        facts = {
            "numbers of sequences": len(layout.lens_q),
            "numbers of queries": sum(map(sum, layout.parts_q)),
            "numbers of keys": sum(map(sum, layout.parts_k)),
            "query heads": q.shape[1],
            "key heads": k.shape[1],
            "head sizes": q.shape[2],
            "bytes per element": q.element_size(),
            "splits (by checksum)": zlib.crc32(split.encode()),
        }
        for channel in (self.ulysses, self.ring):
            if channel is not None:
                channel.agree(facts, "verify", q.device)
