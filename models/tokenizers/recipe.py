"""How a tokenizer is trained: reconstruction, perception, a bounded latent, and a critic."""

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from common.errors import ConfigError
from models.tokenizers.quality import ms_ssim


@dataclass(kw_only=True)
class RecipeConfig:
    """Steps of AdamW with a cosine decay, and the weights of the loss. A weight of 0 leaves a term
    out."""

    steps: int = 2000
    batch: int = 4
    """Windows of one shape in a step."""
    lr: float = 2e-3
    l1: float = 1.0
    l2: float = 0.0
    perceptual: float = 0.1
    """Of 1 - multi-scale SSIM, which needs no trained weights."""
    kl: float = 1e-4
    """Of the divergence from a standard normal, mean over the raw latents' values. With 0 the
    latents carry no noise in training."""
    adversarial: float = 0.0
    """Of what a critic of patches says, trained beside."""
    adversarial_from: int = 1000
    """Step at which the critic's word begins to count."""
    critic_width: int = 32

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ConfigError(f"tokenizer steps must not be negative, got {self.steps}")
        for name in ("batch", "critic_width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"tokenizer {name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"tokenizer lr must be positive, got {self.lr}")
        for name in ("l1", "l2", "perceptual", "kl", "adversarial", "adversarial_from"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(
                    f"tokenizer {name} must not be negative, got {getattr(self, name)}"
                )
        if not self.l1 + self.l2 > 0:
            raise ConfigError("tokenizer l1 and l2 are both 0: nothing would be reconstructed")


def reconstruction_loss(config: RecipeConfig, made: Tensor, real: Tensor) -> dict[str, Tensor]:
    """The weighted terms for videos `[B, 3, T, H, W]` in -1 .. 1, by name."""
    terms = {}
    if config.l1:
        terms["l1"] = config.l1 * (made - real).abs().mean()
    if config.l2:
        terms["l2"] = config.l2 * (made - real).square().mean()
    if config.perceptual:
        terms["perceptual"] = config.perceptual * (1 - ms_ssim(made, real, peak=2.0))
    return terms


def kl_loss(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, 1)), mean over values (Kingma and Welling 2014, appendix B)."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()


class Critic(nn.Module):
    """Judges overlapping patches of space and time: `[B, 3, T, H, W]` to scores `[B, 1, T, h, w]`.

    Isola et al. 2017, section 3.2.2, with 3D convolutions; hinge loss as in Lim and Ye 2017.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        kernel, pad, stride = (3, 4, 4), (1, 1, 1), (1, 2, 2)
        self.layers = nn.Sequential(
            nn.Conv3d(3, width, kernel, stride, pad),
            nn.LeakyReLU(0.2),
            nn.Conv3d(width, 2 * width, kernel, stride, pad),
            nn.GroupNorm(1, 2 * width),
            nn.LeakyReLU(0.2),
            nn.Conv3d(2 * width, 4 * width, kernel, stride, pad),
            nn.GroupNorm(1, 4 * width),
            nn.LeakyReLU(0.2),
            nn.Conv3d(4 * width, 1, 3, padding=1),
        )

    def forward(self, video: Tensor) -> Tensor:
        return self.layers(video)

    def loss(self, made: Tensor, real: Tensor) -> Tensor:
        """What the critic itself minimises."""
        return F.relu(1 - self(real)).mean() + F.relu(1 + self(made.detach())).mean()


def learning_rate(config: RecipeConfig, step: int) -> float:
    """Of step number `step`, from 0: a short warm-up, then a cosine to zero."""
    warm = min(1.0, (step + 1) / max(1, config.steps // 20))
    return config.lr * warm * 0.5 * (1 + math.cos(math.pi * step / config.steps))
