"""Denoising error on held-out windows, comparable between any two moments of a run."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from common import rng
from dataloading.batch import Batch
from models.encoding import Encoding
from models.objectives.loss import Network, Objective, token_noise
from training.step import prepare

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
    network: Network,
    objective: Objective,
    encoding: Encoding,
    batches: Iterable[Batch],
    sigmas: list[float],
) -> ValidationResult | None:
    """Mean over all tokens of all windows, at each of `sigmas`, with the text given.

    None where there is no window.
    """
    totals = {float(sigma): 0.0 for sigma in sigmas}
    num_tokens = 0
    for batch in batches:
        prepared = prepare(batch, encoding, [False] * batch.num_samples)
        num_tokens += batch.num_tokens
        for sigma in totals:
            # By the level's value, so that the list it stands in changes nothing.
            purpose = f"validation at {sigma!r}"
            keys = rng.keys(_SEED, purpose, step=0, sample_ids=prepared.sample_ids)
            noise = token_noise(keys.to(encoding.device), prepared.layout, prepared.clean.shape[1])
            levels = torch.full((batch.num_samples,), sigma, device=encoding.device)
            errors = objective.errors(
                network, prepared.clean, levels, noise, prepared.text, prepared.layout
            )
            totals[sigma] += float(errors.sum())
    if not num_tokens:
        return None
    return ValidationResult({s: t / num_tokens for s, t in totals.items()})
