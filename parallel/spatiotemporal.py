"""Spatial and temporal attention over ranks: each is local once the tokens are held right.

In whole *frames* a rank computes spatial attention alone, in whole *places* (h, w) through all
frames temporal attention. One exchange of the hidden states leads from one to the other, at a
quarter of what exchanging heads for an attention sends. Full attention needs all ranks in either;
what works token by token needs none.

So between a spatial and the next temporal layer one exchange must lie, and no others need to. A
network of L blocks takes L exchanges where every second block turns the order round (spatial,
temporal, temporal, spatial, ...), else 2L - 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from models.attention import Packed
from models.pack import PackLayout, Rows
from parallel.collectives import Channel, all_to_all
from parallel.layout import Lens, PackShare, ShardedPacked

Held = Literal["frames", "places"]
"""What a rank holds whole."""

LOCAL_IN: dict[str, Held] = {"spatial": "frames", "temporal": "places"}
OTHER: dict[Held, Held] = {"frames": "places", "places": "frames"}

MAX_IMBALANCE = 2.0
"""From here on, half of the ranks' time would be lost by holding tokens so: no exchange then."""


def plan(sublayers: Sequence[str], imbalance: dict[Held, float]) -> list[Held]:
    """How tokens are held in each of `sublayers`, with the fewest exchanges.

    Where it is free in which half a layer between two exchanges runs, it takes the one that splits
    the pack more evenly: `imbalance` is the largest share of a rank over the mean.

    Where one of the two leaves half of the ranks idle (the single frame of an image cannot be split
    in frames), all is held in the other, without any exchange; the attention whose rows are then
    split goes over ranks.
    """
    fitting: list[Held] = [held for held in ("frames", "places") if imbalance[held] < MAX_IMBALANCE]
    if len(fitting) == 1:
        return fitting * len(sublayers)
    even = imbalance["frames"] == imbalance["places"]
    better = min(OTHER, key=lambda held: (imbalance[held], held != "places"))
    needs: list[Held | None] = [LOCAL_IN.get(name) for name in sublayers]
    chosen: list[Held] = []
    for i, need in enumerate(needs):
        held: Held = better if need is None else need
        if need is None:
            after: list[Held] = [n for n in needs[i:] if n is not None]
            ends = chosen[-1:] + after[:1]
            if ends and (even or len(set(ends)) == 1):
                held = ends[0]
        chosen.append(held)
    return chosen


def split_units(counts: Sequence[int], sizes: Sequence[int], parts: int) -> tuple[Lens, ...]:
    """For each part its units (frames or places) of each sample.

    Sample i has `counts[i]` units of `sizes[i]` tokens. What an even split leaves over goes to the
    parts with the fewest tokens so far, the first of equals.
    """
    split: list[list[int]] = [[] for _ in range(parts)]
    tokens = [0] * parts
    for count, size in zip(counts, sizes, strict=True):
        lucky = sorted(range(parts), key=lambda part: (tokens[part], part))[: count % parts]
        for part in range(parts):
            units = count // parts + (part in lucky)
            split[part].append(units)
            tokens[part] += units * size
    return tuple(tuple(units) for units in split)


@dataclass(frozen=True, kw_only=True)
class GridShare(PackShare):
    """The part of a pack that is made of whole frames, or of whole places.

    Tokens lie in the order (t h w) in frames, (h w t) in places.
    """

    held: Held
    halves: "Halves"

    @cached_property
    def units_by_part(self) -> tuple[Lens, ...]:
        """Frames or places of each sample on each part."""
        area = [h * w for _, h, w in self.grids]
        frames = [t for t, _, _ in self.grids]
        counts, sizes = (frames, area) if self.held == "frames" else (area, frames)
        return split_units(counts, sizes, self.parts)

    @cached_property
    def lens_by_part(self) -> tuple[Lens, ...]:
        sizes = [h * w if self.held == "frames" else t for t, h, w in self.grids]
        return tuple(
            tuple(n * size for n, size in zip(units, sizes, strict=True))
            for units in self.units_by_part
        )

    @cached_property
    def tokens_by_part(self) -> list[int]:
        return [sum(lens) for lens in self.lens_by_part]

    @cached_property
    def imbalance(self) -> float:
        """The most tokens that a part holds, over the mean."""
        return max(self.tokens_by_part) * self.parts / max(sum(self.tokens_by_part), 1)

    @cached_property
    def owner(self) -> Tensor:
        """`int64 [N]`, over the whole pack in its own order: the part that holds each token."""
        whole = self.halves.whole
        t, h, w = whole.coordinates.unbind(1)
        width = torch.tensor([w for _, _, w in self.grids], device=self.device)
        unit = t if self.held == "frames" else h * whole.spread(width) + w
        ends = torch.tensor(self.units_by_part, device=self.device).cumsum(0)[:-1]
        return (unit >= ends[:, whole.segment]).sum(0)

    @cached_property
    def order(self) -> Tensor:
        """`int64 [N]`: the tokens of the whole pack, part after part, as each part holds them."""
        whole = self.halves.whole
        if self.held == "frames":
            return self.owner.argsort(stable=True)
        by_place = whole.temporal.there
        assert by_place is not None
        return by_place[self.owner[by_place].argsort(stable=True)]

    @cached_property
    def index(self) -> Tensor:
        return self.order.split(self.tokens_by_part)[self.part]

    @cached_property
    def position(self) -> Tensor:
        return self.index - self.spread(self.starts)

    @cached_property
    def spatial(self) -> Rows:
        return self._rows(
            [(t, h * w) for t, h, w in self.grids], "frames", sort_by=lambda: self.index
        )

    @cached_property
    def temporal(self) -> Rows:
        return self._rows(
            [(h * w, t) for t, h, w in self.grids], "places", sort_by=lambda: self.place_by_place
        )

    def _rows(self, rows, local_in: Held, sort_by) -> Rows:
        """`rows`: of each sample their number and length."""
        if self.held == local_in:
            lens = tuple(
                length
                for (_, length), units in zip(rows, self.units_by_part[self.part], strict=True)
                for _ in range(units)
            )
            return Rows(Packed(lens, lens))
        # Every rank holds a part of every row: as many tokens as it has units of the other kind.
        parts = tuple(
            tuple(n for (number, _), n in zip(rows, units, strict=True) for _ in range(number))
            for units in self.units_by_part
        )
        return Rows(ShardedPacked.of(parts, parts, self.part), there=sort_by().argsort())

    def schedule(self, sublayers: Sequence[str]) -> list[PackLayout]:
        halves = self.halves
        imbalance: dict[Held, float] = {held: halves[held].imbalance for held in OTHER}
        return [halves[held] for held in plan(sublayers, imbalance)]

    def switch(self, x: Tensor, to: PackLayout, layer: str) -> Tensor:
        if to is self:
            return x
        if to is not self.halves[OTHER[self.held]]:
            raise ValueError(f"{layer}: tokens cannot be switched to the layout of another pack")
        return self.halves.exchange(x, self.held, layer)


@dataclass(frozen=True)
class Exchange:
    """One direction of the exchange, for this rank."""

    send: Tensor
    """`int64`: the tokens held, ordered by the rank that gets them."""
    splits_in: list[int]
    splits_out: list[int]
    place: Tensor
    """`int64`: the tokens that came, ordered as they are to be held."""


@dataclass(frozen=True)
class Halves:
    """Both ways to hold a pack over the ranks of `channel`, and the exchange between them."""

    whole: PackLayout
    channel: Channel

    @cached_property
    def frames(self) -> GridShare:
        return self._share("frames")

    @cached_property
    def places(self) -> GridShare:
        return self._share("places")

    def __getitem__(self, held: Held) -> GridShare:
        return self.frames if held == "frames" else self.places

    def _share(self, held: Held) -> GridShare:
        whole = self.whole
        return GridShare(
            whole.grids,
            whole.lens_text,
            whole.fps,
            self.channel.size,
            self.channel.rank,
            held=held,
            halves=self,
            prefix=whole.prefix,
            actions=whole.actions,
        )

    def start(self, sublayers: Sequence[str]) -> GridShare:
        """As a network of these sub-layers first wants the pack held."""
        first = self.frames.schedule(sublayers)[0]
        assert isinstance(first, GridShare)
        return first

    def exchange(self, x: Tensor, held: Held, layer: str) -> Tensor:
        """`x [N, ...]` from `held` to the other way; counted as `switch` of `layer`."""
        way = self._from_frames if held == "frames" else self._from_places
        width = x.shape[1:].numel()
        channel = replace(self.channel, layer=layer)
        sent = x.index_select(0, way.send).reshape(-1)
        came = all_to_all(
            sent,
            channel,
            [n * width for n in way.splits_in],
            [n * width for n in way.splits_out],
            "switch",
        )
        return came.view(-1, *x.shape[1:]).index_select(0, way.place)

    @cached_property
    def _from_frames(self) -> Exchange:
        return self._exchange(self.frames, self.places)

    @cached_property
    def _from_places(self) -> Exchange:
        return self._exchange(self.places, self.frames)

    def _exchange(self, a: GridShare, b: GridShare) -> Exchange:
        me = a.part

        def shared(one: GridShare, part: int, other: GridShare, other_part: int) -> int:
            # A rank's frames and a rank's places have so many tokens in common.
            units = zip(one.units_by_part[part], other.units_by_part[other_part], strict=True)
            return sum(n * m for n, m in units)

        parts = range(a.parts)
        # By receiver, then sender, then as the sender holds them: of each receiver one run.
        arriving = a.order[b.owner[a.order].argsort(stable=True)].split(b.tokens_by_part)[me]
        at = torch.empty(self.whole.num_tokens, dtype=torch.int64, device=self.whole.device)
        at[arriving] = torch.arange(len(arriving), device=at.device)
        return Exchange(
            send=b.owner[a.index].argsort(stable=True),
            splits_in=[shared(a, me, b, p) for p in parts],
            splits_out=[shared(a, p, b, me) for p in parts],
            place=at[b.index],
        )
