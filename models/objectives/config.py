"""What can be asked of an objective: target, noise levels, weight of the loss."""

import math
from dataclasses import dataclass
from typing import Literal

from common.errors import ConfigError

Target = Literal["edm", "flow", "v", "x0", "epsilon", "next_token"]
NoiseKind = Literal["lognormal", "uniform", "mode"]
WeightKind = Literal["output", "clean", "min_snr", "soft_min_snr"]


@dataclass(kw_only=True)
class ObjectiveConfig:
    """EDM by default, with the noise levels of its successor EDM2.

    A noise level is sigma, the noise's standard deviation over clean data. Flow matching mixes
    `(1 - t) clean + t noise`, which is the same up to scale with `sigma = t / (1 - t)`; so every
    choice of noise levels goes with every target.
    """

    target: Target = "edm"
    """What the network's output means, see `models.objectives.targets`. next_token is the one of an
    autoregressive network, by cross-entropy; noise, weight and all else here are for the others."""
    sigma_data: float = 0.5
    """Standard deviation to which latents are brought."""
    noise: NoiseKind = "lognormal"
    """Distribution of noise levels. lognormal: ln(sigma) is normal, which for t is the logit-normal
    one. uniform: of t. mode: of t, heavier at both ends or in the middle."""
    p_mean: float = -0.4
    """Of ln(sigma), where noise is lognormal."""
    p_std: float = 1.0
    mode_scale: float = 1.29
    """-1 to 1.75; more puts more levels in the middle (Esser et al. 2024, eq. 20)."""
    shift: float = 1.0
    """Every level is multiplied by it, which takes t to `shift t / (1 + (shift - 1) t)`."""
    resolution_power: float = 0.0
    """Levels also grow as this power of the patches in a frame over `base_frame_patches`; 0.5
    keeps what of an image is destroyed (Esser et al. 2024, eq. 23)."""
    base_frame_patches: int = 256
    length_power: float = 0.0
    """Levels also grow as this power of the patches along time."""
    weight: WeightKind = "output"
    """Of the squared error. output: all outputs of the network count alike; clean: the clean data
    do; min_snr, soft_min_snr: see `models.objectives.weights`."""
    snr_gamma: float = 5.0
    log_variance: bool = False
    """Learns how hard each level is, and divides by it (EDM2)."""

    def __post_init__(self) -> None:
        for name in ("sigma_data", "p_std", "shift", "snr_gamma"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"objective.{name} must be positive, got {getattr(self, name)}")
        for name in ("p_mean", "resolution_power", "length_power"):
            if not math.isfinite(getattr(self, name)):
                raise ConfigError(f"objective.{name} must be finite, got {getattr(self, name)}")
        # Beyond, more noise would no longer be a later time.
        if not -1 <= self.mode_scale <= 2 / (math.pi - 2):
            raise ConfigError(f"objective.mode_scale must lie in -1 to 1.75, got {self.mode_scale}")
        if self.base_frame_patches < 1:
            raise ConfigError(
                f"objective.base_frame_patches must be at least 1, got {self.base_frame_patches}"
            )
