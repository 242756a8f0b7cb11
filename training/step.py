"""One training step: packs in, weighted denoising loss, gradients out."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from common import rng
from dataloading.batch import Batch
from models.encoding import Encoding
from models.objectives.choose import AnyObjective
from models.pack import PackLayout, Prefix
from training.prefix import loss_mask


@dataclass(frozen=True)
class Prepared:
    """A batch on the device, in the form that networks take."""

    clean: Tensor
    text: Tensor
    layout: PackLayout
    sample_ids: list[str]
    loss_mask: Tensor | None


def prepare(
    batch: Batch,
    encoding: Encoding,
    dropped: Sequence[bool],
    share: Callable[[PackLayout], PackLayout] | None = None,
    prefix: Prefix | None = None,
    actionless: Sequence[bool] | None = None,
) -> Prepared:
    """Encodes frames and captions, where the batch does not bring latents and embeddings. Samples
    that are `dropped` lose their text (for guidance), those that are `actionless` their actions.

    `prefix` says what is given of the samples, which then does not count in the loss.
    `share` says which part of the pack's tokens this rank holds; without one, all.
    """
    text, lens_text = _texts(batch, encoding, dropped)
    if prefix is not None:
        prefix = Prefix(prefix.lens, prefix.sigma.to(encoding.device))
    fps = batch.fps.to(encoding.device)
    actions = None
    if batch.actions is not None:
        lost = actionless or [False] * batch.num_samples
        kept = [None if drop else a for a, drop in zip(batch.actions, lost, strict=True)]
        actions = encoding.actions(kept, batch.grid[:, 0].tolist())
    layout = PackLayout.build(batch.grid.tolist(), lens_text, fps, prefix, actions)
    if batch.latents is not None:
        clean = encoding.of_latents(batch.latents)
    elif batch.frames is not None:
        clean = encoding.tokens(batch.frames)
    else:
        raise ValueError("the batch holds neither frames nor latents")
    if clean.shape[0] != batch.num_tokens:
        raise ValueError(f"the plan says {batch.num_tokens} tokens, encoding {clean.shape[0]}")
    mask = loss_mask(batch, prefix)
    mask = None if mask is None else mask.to(encoding.device)
    if share is not None:
        layout = share(layout)
        clean = clean.index_select(0, layout.index)
        mask = None if mask is None else mask.index_select(0, layout.index)
    return Prepared(clean, text, layout, batch.sample_ids, mask)


def _texts(batch: Batch, encoding: Encoding, dropped: Sequence[bool]) -> tuple[Tensor, list[int]]:
    """Embeddings `[L, d]` and the tokens of each caption; those that are dropped have none."""
    if batch.text is None or batch.cu_seqlens_text is None:
        pairs = zip(batch.captions, dropped, strict=True)
        return encoding.texts(["" if drop else caption for caption, drop in pairs])
    parts = batch.text.split(batch.cu_seqlens_text.diff().tolist())
    kept = [part[:0] if drop else part for part, drop in zip(parts, dropped, strict=True)]
    return torch.cat(kept).to(encoding.device), [len(part) for part in kept]


def drop_text(
    seed: int,
    step: int,
    sample_ids: list[str],
    probability: float,
    purpose: str = "text_dropout",
) -> list[bool]:
    """Which samples lose their text in this step: a function of (seed, step, sample) alone."""
    keys = rng.keys(seed, purpose, step=step, sample_ids=sample_ids)
    return (
        rng.uniform(keys, torch.zeros(len(sample_ids), dtype=torch.int64)) < probability
    ).tolist()


def draws(objective: AnyObjective, seed: int, step: int, prepared: Prepared) -> tuple[Tensor, ...]:
    """What the objective draws in this step: noise levels `[n]` and noise `[N, p]`, or nothing."""

    def keys(purpose: str) -> Tensor:
        keys = rng.keys(seed, purpose, step=step, sample_ids=prepared.sample_ids)
        return keys.to(prepared.clean.device)

    return objective.draws(keys, prepared.layout, prepared.clean.shape[1])


def weighted_loss(
    network: Any, objective: AnyObjective, prepared: Prepared, *drawn: Tensor
) -> Tensor:
    """Sum over the pack's tokens of the objective's losses, a scalar."""
    weighted = objective.token_losses(
        network, prepared.clean, prepared.text, prepared.layout, *drawn
    )
    if prepared.loss_mask is not None:
        weighted = weighted * prepared.loss_mask
    return weighted.sum()


def add_gradients(
    network: Any,
    objective: AnyObjective,
    packs: Iterable[Prepared],
    *,
    num_tokens: int,
    seed: int,
    step: int,
    autocast: AbstractContextManager[Any],
) -> float:
    """Adds the gradients of the loss of `packs` to the network's parameters; returns the loss.

    The loss is the mean over the `num_tokens` that count in all packs together, those of other
    ranks too, so several packs give what one pack of all their samples would. Over ranks loss and
    gradients are this rank's share: their sums are the whole. One pack at a time is in memory.
    """
    total = 0.0
    for prepared in packs:
        drawn = draws(objective, seed, step, prepared)
        with autocast:
            loss = weighted_loss(network, objective, prepared, *drawn)
        (loss / num_tokens).backward()
        total += float(loss.detach())
    return total / num_tokens


def num_loss_tokens(batches: Sequence[Batch], prefixes: Sequence[Prefix | None]) -> int:
    """Tokens that count in the loss of a step, over all its packs."""
    masks = [loss_mask(b, prefix) for b, prefix in zip(batches, prefixes, strict=True)]
    pairs = zip(batches, masks, strict=True)
    return sum(b.num_tokens if mask is None else int(mask.sum()) for b, mask in pairs)
