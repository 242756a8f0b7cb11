"""Which tokens lie on which rank of a context-parallel group.

Every rank holds a part of every sequence, contiguous and as even as can be; nothing is padded. All
sizes are plain integers that each rank computes for all ranks, so no collective asks for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from models.attention import Dense, Packed
from models.pack import PackLayout

Lens = tuple[int, ...]
"""Tokens of each sequence."""


def split_evenly(n: int, parts: int) -> Lens:
    """`n` in `parts` sizes that differ by one at most, the larger first."""
    return tuple(n // parts + (i < n % parts) for i in range(parts))


def split_lens(lens: Sequence[int], parts: int) -> tuple[Lens, ...]:
    """For each part its tokens of each sequence.

    The tokens that an even split leaves over go to the parts in turn, on from where the sequence
    before stopped; so the totals of the parts, too, differ by one at most.
    """
    split: list[list[int]] = [[] for _ in range(parts)]
    turn = 0
    for n in lens:
        left = n % parts
        for part in range(parts):
            split[part].append(n // parts + ((part - turn) % parts < left))
        turn = (turn + left) % parts
    return tuple(tuple(sizes) for sizes in split)


@dataclass(frozen=True, kw_only=True)
class ShardedPacked(Packed):
    """A `Packed` of which this rank holds the part `part`; keys are split like queries are.

    Part p of a sequence comes before part p + 1. `lens_q` and `lens_k` are this part's own.
    """

    parts_q: tuple[Lens, ...]
    parts_k: tuple[Lens, ...]
    part: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.parts_q) != len(self.parts_k) or not 0 <= self.part < len(self.parts_q):
            raise ValueError(
                f"part {self.part} of {len(self.parts_q)} parts of q and {len(self.parts_k)} of k"
            )
        if self.causal and self.parts_q != self.parts_k:
            raise ValueError("causal attention over ranks needs q and k split alike")

    @classmethod
    def of(
        cls,
        parts_q: tuple[Lens, ...],
        parts_k: tuple[Lens, ...],
        part: int,
        *,
        causal: bool = False,
    ) -> "ShardedPacked":
        return cls(
            parts_q[part], parts_k[part], causal, parts_q=parts_q, parts_k=parts_k, part=part
        )

    @property
    def num_parts(self) -> int:
        return len(self.parts_q)


@dataclass(frozen=True, kw_only=True)
class ShardedDense(Dense):
    """A `Dense` of which this rank holds `sizes_q[part]` queries and `sizes_k[part]` keys a row."""

    sizes_q: Lens
    sizes_k: Lens
    part: int

    def packed(self, rows: int) -> ShardedPacked:
        """The same for `rows` rows laid end to end."""
        return ShardedPacked.of(
            tuple((n,) * rows for n in self.sizes_q),
            tuple((n,) * rows for n in self.sizes_k),
            self.part,
            causal=self.causal,
        )


@dataclass(frozen=True)
class PackShare(PackLayout):
    """The part `part` of `parts` of a pack: a `PackLayout` of the tokens that this rank holds.

    Positions and coordinates are those in the whole samples. Text and all that is per sample is
    whole on every rank.
    """

    parts: int
    part: int

    @classmethod
    def of(cls, whole: PackLayout, parts: int, part: int) -> "PackShare":
        return cls(
            whole.grids,
            whole.lens_text,
            whole.fps,
            parts,
            part,
            prefix=whole.prefix,
            actions=whole.actions,
        )

    @cached_property
    def lens_by_part(self) -> tuple[Lens, ...]:
        return split_lens(self.lens_whole, self.parts)

    @cached_property
    def lens(self) -> Lens:
        """Tokens of each sample on this rank; 0 where a sample is shorter than its parts."""
        return self.lens_by_part[self.part]

    @cached_property
    def position(self) -> Tensor:
        """`int64 [N]`: each token's index inside its whole sample."""
        starts = [sum(sizes) for sizes in zip(*self.lens_by_part[: self.part], strict=True)]
        starts = starts or [0] * len(self.lens)
        return torch.cat(
            [
                torch.arange(start, start + n, device=self.device)
                for start, n in zip(starts, self.lens, strict=True)
            ]
        )

    @cached_property
    def index(self) -> Tensor:
        """`int64 [N]`: where each token lies in the whole pack, to take this rank's share of it."""
        return self.position + self.spread(self.starts)

    @cached_property
    def self_attention(self) -> ShardedPacked:
        return ShardedPacked.of(self.lens_by_part, self.lens_by_part, self.part)

    @cached_property
    def causal_attention(self) -> ShardedPacked:
        return ShardedPacked.of(self.lens_by_part, self.lens_by_part, self.part, causal=True)

    def schedule(self, sublayers: Sequence[str]) -> list[PackLayout]:
        """Raises `ValueError` for spatial and temporal layers: an even part cuts through frames."""
        if {"spatial", "temporal"} & set(sublayers):
            raise ValueError(
                "a pack held in even parts has no whole frames or places for spatial and temporal "
                "attention: share it out by parallel.spatiotemporal.Halves"
            )
        return super().schedule(sublayers)
