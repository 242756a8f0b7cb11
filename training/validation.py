"""Denoising error on held-out windows, comparable between any two moments of a run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from common import rng
from dataloading.batch import Batch
from models.encoding import Encoding
from models.objectives.choose import AnyObjective
from training.prefix import PrefixConfig, draw_prefix
from training.step import num_loss_tokens, prepare

# Noise levels and noise never depend on the run's seed, so that runs can be compared too.
_SEED = 0


@dataclass(frozen=True)
class ValidationResult:
    """Unweighted squared error of the denoiser, by noise level, and its mean over the levels."""

    per_sigma: dict[float, float]

    @property
    def loss(self) -> float:
        return sum(self.per_sigma.values()) / len(self.per_sigma)


@torch.no_grad()
def validate(
    network: Any,
    objective: AnyObjective,
    encoding: Encoding,
    batches: Iterable[Batch],
    sigmas: list[float],
    prefix: PrefixConfig | None = None,
) -> ValidationResult | None:
    """Mean over all tokens of all windows, at each of `sigmas`, with the text given.

    Where `prefix` gives samples their first frames, those do not count.

    None where there is no window.
    """
    totals = {float(level): 0.0 for level in objective.levels(sigmas)}
    num_tokens = 0
    for batch in batches:
        given = draw_prefix(prefix or PrefixConfig(), _SEED, 0, batch)
        prepared = prepare(batch, encoding, [False] * batch.num_samples, prefix=given)
        num_tokens += num_loss_tokens([batch], [given])

        def keys(purpose: str, ids: list[str] = prepared.sample_ids) -> Tensor:
            return rng.keys(_SEED, purpose, step=0, sample_ids=ids).to(encoding.device)

        for level in totals:
            errors = objective.held_out(
                network, prepared.clean, prepared.text, prepared.layout, level, keys
            )
            totals[level] += float(errors.sum())
    if not num_tokens:
        return None
    return ValidationResult({s: t / num_tokens for s, t in totals.items()})
