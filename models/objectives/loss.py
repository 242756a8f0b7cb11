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


@dataclass(frozen=True)
class Denoiser:
    """`D(x; sigma)`: the clean tokens estimated from noisy ones (Karras et al. 2022, eq. 7)."""

    network: Network
    precondition: Precondition

    def __call__(self, x: Tensor, sigma: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, p]` = clean + sigma * noise, `sigma [n]`, `text [L, d]` to `[N, p]`."""
        s = self.precondition(sigma)
        spread = layout.spread
        raw = self.network(spread(s.c_in)[:, None] * x, s.c_noise, text, layout)
        return spread(s.c_skip)[:, None] * x + spread(s.c_out)[:, None] * raw


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

    def errors(
        self,
        network: Network,
        clean: Tensor,
        sigma: Tensor,
        noise: Tensor,
        text: Tensor,
        layout: PackLayout,
    ) -> Tensor:
        """Unweighted squared error of the denoiser, mean over a token's features: `[N]`."""
        noisy = clean + layout.spread(sigma)[:, None] * noise
        denoiser = Denoiser(network, self.precondition)
        return (denoiser(noisy, sigma, text, layout) - clean).square().mean(-1)

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
