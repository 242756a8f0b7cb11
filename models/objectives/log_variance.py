"""How hard each noise level is, learned along with the network."""

import math

import torch
from torch import Tensor, nn

from models.sinusoid import sinusoid

FEATURES = 128


class LogVariance(nn.Module):
    """`u(c_noise)`, `[n]` to `float32 [n]`: linear in smooth features of the level.

    The loss becomes `w / e^u * error + u`, whose best u is ln of the expected `w * error`: every
    level then pulls at the weights alike (Karras et al. 2024, EDM2, after Kendall et al. 2018). It
    may become negative, which means nothing but an error below 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(FEATURES))

    def forward(self, c_noise: Tensor) -> Tensor:
        # Frequencies from one turn per unit down to a hundredth: levels e^4 apart are told apart.
        return sinusoid(c_noise * 2 * math.pi, FEATURES, max_period=100.0) @ self.weight.float()
