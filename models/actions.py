"""Actions of frames as networks take them: one for each patch along time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from models.pack import Actions


def pack_actions(
    actions: Sequence[Tensor | None], patches: Sequence[int], frames_per_patch: int
) -> Actions | None:
    """Of samples with actions `float32 [T, a]`, or none, and their `patches` along t; None where
    no sample has any."""
    dim = next((a.shape[1] for a in actions if a is not None), None)
    if dim is None:
        return None
    parts = [
        torch.zeros(t, dim) if a is None else per_patch(a, t, frames_per_patch)
        for a, t in zip(actions, patches, strict=True)
    ]
    return Actions(torch.cat(parts), tuple(a is not None for a in actions))


def per_patch(actions: Tensor, patches: int, frames: int) -> Tensor:
    """Actions of T frames `[T, a]` to those of `patches` patches of `frames` frames: the mean of
    each one's; the first frame stands for those before it, as in a causal tokenizer."""
    before = actions[:1].expand(frames * patches - len(actions), -1)
    return torch.cat([before, actions]).unflatten(0, (patches, frames)).mean(1)
