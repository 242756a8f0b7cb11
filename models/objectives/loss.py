"""The denoiser around a network, and the denoising loss."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from common import rng
from models.objectives.edm import EDMConfig, EDMPrecondition, LogNormalNoise, Scalings
from models.objectives.weights import edm_weight
from models.pack import PackLayout

Network = Callable[[Tensor, Tensor, Tensor, PackLayout], Tensor]


@dataclass(frozen=True)
class Denoiser:
    """`D(x; sigma)`: the clean tokens estimated from noisy ones (Karras et al. 2022, eq. 7)."""

    network: Network
    precondition: Callable[[Tensor], Scalings]

    def __call__(self, x: Tensor, sigma: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, p]` = clean + sigma * noise, `sigma [n]`, `text [L, d]` to `[N, p]`."""
        s = self.precondition(sigma)
        spread = layout.spread
        raw = self.network(spread(s.c_in)[:, None] * x, s.c_noise, text, layout)
        return spread(s.c_skip)[:, None] * x + spread(s.c_out)[:, None] * raw


@dataclass(frozen=True)
class Objective:
    """Draws noise levels and noise, and scores a denoiser."""

    precondition: EDMPrecondition
    noise: LogNormalNoise

    @classmethod
    def from_config(cls, config: EDMConfig) -> "Objective":
        return cls(EDMPrecondition(config.sigma_data), LogNormalNoise(config.p_mean, config.p_std))

    def weight(self, sigma: Tensor) -> Tensor:
        """`[n]` to `[n]`."""
        return edm_weight(sigma, self.precondition.sigma_data)

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


def token_noise(keys: Tensor, layout: PackLayout, token_dim: int) -> Tensor:
    """Standard normal noise for a pack, `float32 [N, token_dim]`.

    A pure function of each sample's key and of the token's place in its sample: the same for any
    packing, any order and any split of the tokens over ranks.
    """
    return rng.normal_rows(layout.spread(keys), layout.position, token_dim)
