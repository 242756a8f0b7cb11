"""The batch: what `dataloading` gives and `training` consumes. Always packed (THD)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(kw_only=True)
class Batch:
    """A pack of n samples, laid end to end; one sample is a pack of one.

    Timestep, fps and modulation belong to the sample, also inside a pack. Tokens are patches in
    the order (t h w); the plan needs shapes only, so it is the same for latents and for frames.
    Exactly one of `frames` and `latents` is given.
    """

    grid: Tensor
    """`int64 [n, 3]`: patches along t, h, w."""
    cu_seqlens: Tensor
    """`int32 [n+1]`: where each sample's tokens begin; the last entry is the pack's length."""
    fps: Tensor
    """`float32 [n]`: frames per second of the pixels; 0 for a single image."""
    sample_ids: list[str]
    """`CLIP_ID:EPOCH`, unique inside a run; the key of every random draw for the sample."""
    captions: list[str]
    frames: list[Tensor] | None = None
    """`uint8 [T, H, W, 3]` each, RGB, to be encoded on the device."""
    latents: list[Tensor] | None = None
    """`float32 [C, T, H, W]` each, where the shards hold them."""
    actions: list[Tensor | None] | None = None
    """`float32 [T, a]` each, an action for each frame, where they are asked for; None for a sample
    without."""
    text: Tensor | None = None
    """`float32 [L, d]`: all captions' embeddings end to end, where they are precomputed."""
    cu_seqlens_text: Tensor | None = None
    """`int32 [n+1]` into `text`."""
    loss_mask: Tensor | None = None
    """`bool [num_tokens]`: tokens that count in the loss; all where absent."""
    start_s: Tensor | None = None
    """`float64 [n]`: where in the clip each window begins."""
    pack_index: int = 0
    """Number of this pack in the global order, independent of ranks and workers."""
    loader_state: dict[str, Any] | None = None
    """The loader's state after this batch, where a `DataLoader` worker made it; else the loader
    itself has it."""

    @property
    def num_samples(self) -> int:
        return len(self.sample_ids)

    @property
    def num_tokens(self) -> int:
        return int(self.cu_seqlens[-1])


def cumulative(lengths: list[int] | Tensor) -> Tensor:
    """Lengths to `cu_seqlens`, `int32 [n+1]`."""
    ends = torch.as_tensor(lengths, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return torch.nn.functional.pad(ends, (1, 0))
