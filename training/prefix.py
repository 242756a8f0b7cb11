"""Which first frames of a sample are given in training, and how noisy: image and video to video."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from common import rng
from common.errors import ConfigError
from dataloading.batch import Batch
from models.pack import Prefix


@dataclass(kw_only=True)
class PrefixConfig:
    """How often a sample begins with given frames, for a network with `model.prefix`.

    What is given does not count in the loss. It gets noise of its own, so that a network does not
    rest on details that frames of its own making have not (Ho et al. 2022, "Cascaded diffusion
    models", section 4).
    """

    shares: list[float] = field(default_factory=lambda: [1.0])
    """Of samples that are given none, 1, 2, ... of their latent frames (patches along time), such
    as [0.5,0.3,0.2]. A sample that is too short is given all but its last."""
    sigma_median: float = 0.05
    """Of the noise on what is given; 0: none."""
    sigma_spread: float = 2.0
    """Standard deviation of ln(sigma) of that noise (both as in Cosmos-Predict1)."""

    def __post_init__(self) -> None:
        if not all(0 <= share < math.inf for share in self.shares) or not sum(self.shares) > 0:
            raise ConfigError(
                f"prefix.shares must not be negative, and not all 0, got {self.shares}"
            )
        for name in ("sigma_median", "sigma_spread"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"prefix.{name} must not be negative, got {getattr(self, name)}")

    @property
    def lens(self) -> list[int]:
        """The lengths that occur, ascending."""
        return [n for n, share in enumerate(self.shares) if share > 0]


def draw_prefix(config: PrefixConfig, seed: int, step: int, batch: Batch) -> Prefix | None:
    """What is given of each sample in this step: a function of (seed, step, sample) alone.

    None where no sample of any pack is ever given a thing.
    """
    if config.lens == [0]:
        return None
    ids, n = batch.sample_ids, batch.num_samples
    keys = rng.keys(seed, "prefix", step=step, sample_ids=ids)
    rows = torch.zeros(n, dtype=torch.int64)
    ends = torch.tensor(config.shares, dtype=torch.float64).cumsum(0)
    drawn = torch.searchsorted(ends, rng.uniform(keys, rows) * ends[-1], right=True)
    # A length without a share ends where the one before it does: no draw falls on it.
    lens = torch.minimum(drawn.clamp(max=config.lens[-1]), batch.grid[:, 0] - 1)
    keys = rng.keys(seed, "prefix_noise", step=step, sample_ids=ids)
    sigma = config.sigma_median * (config.sigma_spread * rng.normal(keys, rows)).exp()
    return Prefix(tuple(lens.tolist()), sigma.float())


def loss_mask(batch: Batch, prefix: Prefix | None) -> Tensor | None:
    """`bool [N]`: tokens that count in the loss; None where all do."""
    if prefix is None:
        return batch.loss_mask
    parts = []
    for given, (t, h, w) in zip(prefix.lens, batch.grid.tolist(), strict=True):
        parts.append(torch.arange(t * h * w) >= given * h * w)
    made = torch.cat(parts)
    return made if batch.loss_mask is None else made & batch.loss_mask
