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
from models.objectives.loss import Network, Objective, token_noise
from models.pack import PackLayout


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
) -> Prepared:
    """Encodes frames and captions. Samples that are `dropped` lose their text (for guidance).

    `share` says which part of the pack's tokens this rank holds; without one, all.
    """
    if batch.frames is None:
        raise ValueError("this trainer encodes frames; the batch holds none")
    kept = ["" if drop else caption for caption, drop in zip(batch.captions, dropped, strict=True)]
    text, lens_text = encoding.texts(kept)
    layout = PackLayout.build(batch.grid.tolist(), lens_text, batch.fps.to(encoding.device))
    clean = encoding.tokens(batch.frames)
    if clean.shape[0] != batch.num_tokens:
        raise ValueError(f"the plan says {batch.num_tokens} tokens, encoding {clean.shape[0]}")
    mask = None if batch.loss_mask is None else batch.loss_mask.to(encoding.device)
    if share is not None:
        layout = share(layout)
        clean = clean.index_select(0, layout.index)
        mask = None if mask is None else mask.index_select(0, layout.index)
    return Prepared(clean, text, layout, batch.sample_ids, mask)


def drop_text(seed: int, step: int, sample_ids: list[str], probability: float) -> list[bool]:
    """Which samples lose their text in this step: a function of (seed, step, sample) alone."""
    keys = rng.keys(seed, "text_dropout", step=step, sample_ids=sample_ids)
    return (
        rng.uniform(keys, torch.zeros(len(sample_ids), dtype=torch.int64)) < probability
    ).tolist()


def draws(objective: Objective, seed: int, step: int, prepared: Prepared) -> tuple[Tensor, Tensor]:
    """Noise levels `[n]` and noise `[N, p]` of this step."""
    ids, device = prepared.sample_ids, prepared.clean.device
    keys = rng.keys(seed, "sigma", step=step, sample_ids=ids).to(device)
    sigma = objective.draw_sigma(keys, prepared.layout.grids)
    keys = rng.keys(seed, "noise", step=step, sample_ids=ids).to(device)
    return sigma, token_noise(keys, prepared.layout, prepared.clean.shape[1])


def weighted_loss(
    network: Network, objective: Objective, prepared: Prepared, sigma: Tensor, noise: Tensor
) -> Tensor:
    """Sum over the pack's tokens of the objective's losses, a scalar."""
    error = objective.errors(network, prepared.clean, sigma, noise, prepared.text, prepared.layout)
    weighted = objective.losses(network, error, sigma, prepared.layout)
    if prepared.loss_mask is not None:
        weighted = weighted * prepared.loss_mask
    return weighted.sum()


def add_gradients(
    network: Network,
    objective: Objective,
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
        sigma, noise = draws(objective, seed, step, prepared)
        with autocast:
            loss = weighted_loss(network, objective, prepared, sigma, noise)
        (loss / num_tokens).backward()
        total += float(loss.detach())
    return total / num_tokens


def num_loss_tokens(batches: Sequence[Batch]) -> int:
    """Tokens that count in the loss of a step, over all its packs."""
    return sum(b.num_tokens if b.loss_mask is None else int(b.loss_mask.sum()) for b in batches)
