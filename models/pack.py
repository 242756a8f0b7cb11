"""The geometry of a pack: which token belongs to which sample, and where it lies in it.

Legend: n samples, N tokens in the pack.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from models.attention import Packed

Grid = tuple[int, int, int]


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

    @classmethod
    def build(
        cls, grids: Sequence[Sequence[int]], lens_text: Sequence[int], fps: Tensor
    ) -> "PackLayout":
        if not len(grids) == len(lens_text) == fps.shape[0]:
            raise ValueError(
                f"{len(grids)} grids, {len(lens_text)} text lengths and {fps.shape[0]} fps values "
                "must describe the same samples"
            )
        whole = tuple((int(t), int(h), int(w)) for t, h, w in grids)
        return cls(whole, tuple(int(n) for n in lens_text), fps)

    @property
    def device(self) -> torch.device:
        return self.fps.device

    @cached_property
    def lens(self) -> tuple[int, ...]:
        """Tokens of each sample."""
        return tuple(t * h * w for t, h, w in self.grids)

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
    def position(self) -> Tensor:
        """`int64 [N]`: each token's index inside its sample, in the order (t h w)."""
        return torch.cat([torch.arange(n, device=self.device) for n in self.lens])

    @cached_property
    def coordinates(self) -> Tensor:
        """`int64 [N, 3]`: each token's (t, h, w) inside its sample."""
        size = torch.tensor(self.grids, device=self.device)[self.segment]
        h, w = size[:, 1], size[:, 2]
        p = self.position
        return torch.stack([p // (h * w), p // w % h, p % w], dim=-1)

    @cached_property
    def self_attention(self) -> Packed:
        return Packed(self.lens, self.lens)

    @cached_property
    def cross_attention(self) -> Packed:
        """Keys are text; a sample without text has its one null token."""
        return Packed(self.lens, tuple(max(n, 1) for n in self.lens_text))

    def spread(self, per_sample: Tensor) -> Tensor:
        """A value per sample to a value per token: `[n, ...]` to `[N, ...]`."""
        return per_sample.index_select(0, self.segment)

    def text_mean(self, tokens: Tensor) -> Tensor:
        """Mean over each sample's text tokens, null token included: `[L', h]` to `[n, h]`."""
        lens = self.cross_attention.lens_k
        return torch.stack([part.mean(0) for part in tokens.split(list(lens))])
