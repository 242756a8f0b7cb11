"""The geometry of a pack: which token belongs to which sample, and where it lies in it.

Legend: n samples, N tokens in the pack.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from models.attention import Packed

Grid = tuple[int, int, int]
RowKind = Literal["spatial", "temporal"]
"""Rows of tokens that attend among themselves: those of a frame, or of a place in the frame."""


@dataclass(frozen=True)
class Rows:
    """Tokens in rows end to end, each row attending to itself."""

    attention: Packed
    there: Tensor | None = None
    """`int64 [N]`: from the layout's own order to rows end to end; None where they lie so."""

    @cached_property
    def back(self) -> Tensor | None:
        return None if self.there is None else self.there.argsort()

    def arrange(self, x: Tensor) -> Tensor:
        """`x [N, ...]` of the layout, in rows."""
        return x if self.there is None else x.index_select(0, self.there)

    def restore(self, x: Tensor) -> Tensor:
        """The inverse of `arrange`."""
        return x if self.back is None else x.index_select(0, self.back)


@dataclass(frozen=True)
class Prefix:
    """The beginnings of samples that are given, as in image and video to video."""

    lens: tuple[int, ...]
    """Patches along t of each sample that are given; 0: none."""
    sigma: Tensor
    """`float32 [n]`: the noise that lies on what is given."""


@dataclass(frozen=True)
class Actions:
    """What is done in the frames of a pack's samples."""

    values: Tensor
    """`float32 [F, a]`: for each patch along t of each whole sample; zeros where there is none."""
    given: tuple[bool, ...]
    """Whether each sample has any."""


@dataclass(frozen=True)
class PackLayout:
    """Everything that follows from the grids of the samples in a pack.

    Grids and text lengths are plain integers, known on every rank without communication.
    """

    grids: tuple[Grid, ...]
    """Patches along (t, h, w) of each sample."""
    lens_text: tuple[int, ...]
    """Text tokens of each sample; 0 means unconditional, the model puts its null token there."""
    fps: Tensor
    """`float32 [n]`; 0 for a single image."""
    prefix: Prefix | None = field(default=None, kw_only=True)
    """What is given of the samples; None: nothing of any."""
    actions: Actions | None = field(default=None, kw_only=True)
    """What is done in them; None: nothing is told of any."""

    @classmethod
    def build(
        cls,
        grids: Sequence[Sequence[int]],
        lens_text: Sequence[int],
        fps: Tensor,
        prefix: Prefix | None = None,
        actions: Actions | None = None,
    ) -> "PackLayout":
        if not len(grids) == len(lens_text) == fps.shape[0]:
            raise ValueError(
                f"{len(grids)} grids, {len(lens_text)} text lengths and {fps.shape[0]} fps values "
                "must describe the same samples"
            )
        whole = tuple((int(t), int(h), int(w)) for t, h, w in grids)
        if prefix is not None:
            outside = [
                (n, t) for n, (t, _, _) in zip(prefix.lens, whole, strict=True) if not 0 <= n < t
            ]
            if outside:
                raise ValueError(
                    f"a prefix of {outside[0][0]} patches along t leaves nothing to make of "
                    f"{outside[0][1]}"
                )
        num_frames = sum(t for t, _, _ in whole)
        if actions is not None and (
            len(actions.values) != num_frames or len(actions.given) != len(whole)
        ):
            raise ValueError(
                f"{len(actions.values)} actions of {len(actions.given)} samples, for {num_frames} "
                f"patches along t of {len(whole)}"
            )
        return cls(whole, tuple(int(n) for n in lens_text), fps, prefix=prefix, actions=actions)

    @property
    def device(self) -> torch.device:
        return self.fps.device

    @cached_property
    def lens_whole(self) -> tuple[int, ...]:
        """Tokens of each whole sample."""
        return tuple(t * h * w for t, h, w in self.grids)

    @cached_property
    def lens(self) -> tuple[int, ...]:
        """Tokens of each sample that are here."""
        return self.lens_whole

    @cached_property
    def num_tokens(self) -> int:
        return sum(self.lens)

    @cached_property
    def segment(self) -> Tensor:
        """`int64 [N]`: the sample each token belongs to."""
        lens = torch.tensor(self.lens, device=self.device)
        return torch.repeat_interleave(
            torch.arange(len(self.lens), device=self.device), lens, output_size=self.num_tokens
        )

    @cached_property
    def starts(self) -> Tensor:
        """`int64 [n]`: where each sample starts in the whole pack."""
        return torch.tensor([0, *accumulate(self.lens_whole)][:-1], device=self.device)

    @cached_property
    def position(self) -> Tensor:
        """`int64 [N]`: each token's index inside its sample, in the order (t h w)."""
        return torch.cat([torch.arange(n, device=self.device) for n in self.lens])

    @cached_property
    def index(self) -> Tensor:
        """`int64 [N]`: where each token lies in the whole pack."""
        return torch.arange(self.num_tokens, device=self.device)

    @cached_property
    def coordinates(self) -> Tensor:
        """`int64 [N, 3]`: each token's (t, h, w) inside its sample."""
        size = torch.tensor(self.grids, device=self.device)[self.segment]
        h, w = size[:, 1], size[:, 2]
        p = self.position
        return torch.stack([p // (h * w), p // w % h, p % w], dim=-1)

    @cached_property
    def in_prefix(self) -> Tensor:
        """`bool [N]`: whether each token is given."""
        if self.prefix is None:
            return torch.zeros(self.num_tokens, dtype=torch.bool, device=self.device)
        lens = torch.tensor(self.prefix.lens, device=self.device)
        return self.coordinates[:, 0] < self.spread(lens)

    @cached_property
    def frame(self) -> Tensor:
        """`int64 [N]`: each token's patch along t, counted through all whole samples."""
        starts = [0, *accumulate(t for t, _, _ in self.grids)][:-1]
        return self.spread(torch.tensor(starts, device=self.device)) + self.coordinates[:, 0]

    @cached_property
    def self_attention(self) -> Packed:
        return Packed(self.lens, self.lens)

    @cached_property
    def causal_attention(self) -> Packed:
        """As `self_attention`, but a token sees no later ones."""
        return Packed(self.lens, self.lens, causal=True)

    @cached_property
    def cross_attention(self) -> Packed:
        """Keys are text; a sample without text has its one null token."""
        return Packed(self.lens, tuple(max(n, 1) for n in self.lens_text))

    @cached_property
    def place_by_place(self) -> Tensor:
        """`int64 [N]`: a token's index in the pack if each sample lay in the order (h w t)."""
        t, h, w = torch.tensor(self.grids, device=self.device)[self.segment].unbind(1)
        frame, place = self.position // (h * w), self.position % (h * w)
        return self.spread(self.starts) + place * t + frame

    @cached_property
    def spatial(self) -> Rows:
        """Rows are the frames of the samples."""
        lens = tuple(h * w for t, h, w in self.grids for _ in range(t))
        return Rows(Packed(lens, lens))

    @cached_property
    def temporal(self) -> Rows:
        """Rows are the places (h, w) of the samples, through all frames; a row of 1 in an image."""
        lens = tuple(t for t, h, w in self.grids for _ in range(h * w))
        return Rows(Packed(lens, lens), there=self.place_by_place.argsort())

    def schedule(self, sublayers: Sequence[str]) -> list["PackLayout"]:
        """The layout in which each of a network's sub-layers, in turn, best runs.

        On one device it is this one for all. Over ranks, sub-layers named "spatial" and "temporal"
        may want tokens held otherwise; `switch` brings them.
        """
        return [self] * len(sublayers)

    def switch(self, x: Tensor, to: "PackLayout", layer: str) -> Tensor:
        """`x [N, ...]` of this layout as `to`, one of a schedule, holds it. `layer` asks for it."""
        if to is not self:
            raise ValueError(f"{layer}: a layout of one device has no other to switch to")
        return x

    def spread(self, per_sample: Tensor) -> Tensor:
        """A value per sample to a value per token: `[n, ...]` to `[N, ...]`."""
        return per_sample.index_select(0, self.segment)

    def text_mean(self, tokens: Tensor) -> Tensor:
        """Mean over each sample's text tokens, null token included: `[L', h]` to `[n, h]`."""
        lens = self.cross_attention.lens_k
        return torch.stack([part.mean(0) for part in tokens.split(list(lens))])
