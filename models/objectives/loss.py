"""The denoiser around a network, and the denoising loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from common import rng
from models.objectives.config import ObjectiveConfig
from models.objectives.noise import sample_sigma
from models.objectives.targets import Precondition, precondition
from models.objectives.weights import weight
from models.pack import Grid, PackLayout

Network = Callable[[Tensor, Tensor, Tensor, PackLayout], Tensor]
Keys = Callable[[str], Tensor]
"""For a purpose, the key of each sample of a pack: `int64 [n, 2]`."""


@dataclass(frozen=True)
class Denoiser:
    """`D(x; sigma)`: the clean tokens estimated from noisy ones (Karras et al. 2022, eq. 7)."""

    network: Network
    precondition: Precondition

    def __call__(self, x: Tensor, sigma: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, p]` = clean + sigma * noise, `sigma [n]`, `text [L, d]` to `[N, p]`.

        Tokens of a prefix are to hold what is given, with its own noise; they come back as they
        are.
        """
        s = self.precondition(sigma)
        spread, prefix = layout.spread, layout.prefix
        c_in = spread(s.c_in)
        if prefix is not None:
            # What is given has its own level.
            own = spread(self.precondition(prefix.sigma.to(sigma)).c_in)
            c_in = torch.where(layout.in_prefix, own, c_in)
        raw = self.network(c_in[:, None] * x, s.c_noise, text, layout)
        made = spread(s.c_skip)[:, None] * x + spread(s.c_out)[:, None] * raw
        return made if prefix is None else torch.where(layout.in_prefix[:, None], x, made)


@dataclass(frozen=True)
class Objective:
    """Draws noise levels and scores a network; the same for every target."""

    config: ObjectiveConfig

    @property
    def precondition(self) -> Precondition:
        return precondition(self.config.target, self.config.sigma_data)

    def draw_sigma(self, keys: Tensor, grids: Sequence[Grid]) -> Tensor:
        """One noise level per sample: `keys int64 [n, 2]` to `float32 [n]`."""
        return sample_sigma(self.config, keys, grids)

    def weight(self, sigma: Tensor) -> Tensor:
        """`[n]` to `[n]`, for the squared error of the denoised data."""
        return weight(self.config, sigma, self.precondition(sigma))

    @property
    def measure(self) -> str:
        """What a held-out error is."""
        return "denoising error"

    def draws(self, keys: Keys, layout: PackLayout, width: int) -> tuple[Tensor, ...]:
        """What is random in a step: noise levels `[n]` and noise `[N, width]`."""
        return (
            self.draw_sigma(keys("sigma"), layout.grids),
            token_noise(keys("noise"), layout, width),
        )

    def token_losses(
        self,
        network: Any,
        clean: Tensor,
        text: Tensor,
        layout: PackLayout,
        sigma: Tensor,
        noise: Tensor,
    ) -> Tensor:
        """What each token adds to the loss, `[N]`."""
        errors = self.errors(network, clean, sigma, noise, text, layout)
        return self.losses(network, errors, sigma, layout)

    def levels(self, sigmas: list[float]) -> list[float]:
        """At which of `sigmas` held-out errors are told."""
        return sigmas

    def held_out(
        self,
        network: Network,
        clean: Tensor,
        text: Tensor,
        layout: PackLayout,
        level: float,
        keys: Keys,
    ) -> Tensor:
        """Errors `[N]` of held-out tokens at one of `levels`."""
        # By the level's value, so that the list it stands in changes nothing.
        noise = token_noise(keys(f"validation at {level!r}"), layout, clean.shape[1])
        sigma = torch.full((len(layout.grids),), level, device=clean.device)
        return self.errors(network, clean, sigma, noise, text, layout)

    def errors(
        self,
        network: Network,
        clean: Tensor,
        sigma: Tensor,
        noise: Tensor,
        text: Tensor,
        layout: PackLayout,
    ) -> Tensor:
        """Unweighted squared error of the denoiser, mean over a token's features: `[N]`; 0 where
        the token is given."""
        level = layout.spread(sigma)
        if layout.prefix is not None:
            own = layout.spread(layout.prefix.sigma.to(sigma))
            level = torch.where(layout.in_prefix, own, level)
        noisy = clean + level[:, None] * noise
        denoiser = Denoiser(network, self.precondition)
        errors = (denoiser(noisy, sigma, text, layout) - clean).square().mean(-1)
        return errors if layout.prefix is None else errors.masked_fill(layout.in_prefix, 0)

    def losses(self, network: Any, errors: Tensor, sigma: Tensor, layout: PackLayout) -> Tensor:
        """What each token adds to the loss, `[N]`, of its `errors [N]`.

        Args:
            network: the one that made the errors; where the log-variance is learned it holds it,
                as `log_variance`.
        """
        weighted = layout.spread(self.weight(sigma)) * errors
        if not self.config.log_variance:
            return weighted
        with torch.autocast(sigma.device.type, enabled=False):
            u = layout.spread(network.log_variance(self.precondition(sigma).c_noise))
        return weighted / u.exp() + u


def token_noise(keys: Tensor, layout: PackLayout, token_dim: int) -> Tensor:
    """Standard normal noise for a pack, `float32 [N, token_dim]`.

    A pure function of each sample's key and of the token's place in its sample: the same for any
    packing, any order and any split of the tokens over ranks.
    """
    return rng.normal_rows(layout.spread(keys), layout.position, token_dim)
