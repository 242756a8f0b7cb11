"""EDM (Karras et al. 2022, "Elucidating the design space of diffusion-based generative models").

Four units that know nothing of each other's insides: the preconditioning, the distribution of
noise levels, the loss weight (`weights.py`) and the loss (`loss.py`).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from common import rng
from common.errors import ConfigError


@dataclass(frozen=True)
class Scalings:
    """Per-sample factors of `D(x) = c_skip x + c_out F(c_in x, c_noise)`, each `[n]`."""

    c_skip: Tensor
    c_out: Tensor
    c_in: Tensor
    c_noise: Tensor


@dataclass(kw_only=True)
class EDMConfig:
    """Constants of EDM; the noise distribution's are those of its successor EDM2."""

    sigma_data: float = 0.5
    p_mean: float = -0.4
    p_std: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.sigma_data < math.inf:
            raise ConfigError(f"objective.sigma_data must be positive, got {self.sigma_data}")
        if not math.isfinite(self.p_mean):
            raise ConfigError(f"objective.p_mean must be finite, got {self.p_mean}")
        if not 0 < self.p_std < math.inf:
            raise ConfigError(f"objective.p_std must be positive, got {self.p_std}")


@dataclass(frozen=True)
class EDMPrecondition:
    """Table 1 of the paper, column "Ours"."""

    sigma_data: float

    def __call__(self, sigma: Tensor) -> Scalings:
        total = sigma**2 + self.sigma_data**2
        return Scalings(
            c_skip=self.sigma_data**2 / total,
            c_out=sigma * self.sigma_data / total.sqrt(),
            c_in=1 / total.sqrt(),
            c_noise=sigma.log() / 4,
        )


@dataclass(frozen=True)
class LogNormalNoise:
    """ln(sigma) ~ N(p_mean, p_std^2): Table 1, "Noise distribution"."""

    p_mean: float
    p_std: float

    def sample(self, keys: Tensor) -> Tensor:
        """One sigma per key: `int64 [n, 2]` to `float32 [n]`."""
        z = rng.normal(keys, torch.zeros(keys.shape[0], dtype=torch.int64, device=keys.device))
        return (self.p_mean + self.p_std * z).exp()
