"""Solvers of the probability-flow ODE dx/dsigma = (x - D(x; sigma)) / sigma.

Karras et al. 2022, eq. 4 with s(t) = 1, sigma(t) = t. Every sampler is a function
`(denoise, x, sigmas, on_step) -> x`, and keeps its state in double precision.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

Denoise = Callable[[Tensor, float], Tensor]
"""`(x, sigma) -> D(x; sigma)`, shapes alike."""
Sampler = Callable[[Denoise, Tensor, list[float], Callable[[int], None] | None], Tensor]


def karras_sigmas(num_steps: int, sigma_min: float, sigma_max: float, rho: float) -> list[float]:
    """Noise levels from `sigma_max` down to `sigma_min` and then 0 (Karras et al. 2022, eq. 5)."""
    steps = torch.linspace(0, 1, num_steps, dtype=torch.float64)
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    return [*((high + steps * (low - high)) ** rho).tolist(), 0.0]


def euler(
    denoise: Denoise,
    x: Tensor,
    sigmas: list[float],
    on_step: Callable[[int], None] | None = None,
) -> Tensor:
    """First order: one evaluation a step."""
    dtype, x = x.dtype, x.double()
    for i, (sigma, following) in enumerate(pairwise(sigmas)):
        slope = (x - denoise(x.to(dtype), sigma).double()) / sigma
        x = x + (following - sigma) * slope
        if on_step:
            on_step(i + 1)
    return x.to(dtype)


def heun(
    denoise: Denoise,
    x: Tensor,
    sigmas: list[float],
    on_step: Callable[[int], None] | None = None,
) -> Tensor:
    """Second order: algorithm 1 of Karras et al. 2022 without churn.

    The correction evaluates the denoiser at the predicted point and the next noise level; the last
    step, to sigma 0, is Euler's, since the slope is undefined there.
    """
    dtype, x = x.dtype, x.double()
    for i, (sigma, following) in enumerate(pairwise(sigmas)):
        slope = (x - denoise(x.to(dtype), sigma).double()) / sigma
        predicted = x + (following - sigma) * slope
        if following > 0:
            ahead = (predicted - denoise(predicted.to(dtype), following).double()) / following
            predicted = x + (following - sigma) * 0.5 * (slope + ahead)
        x = predicted
        if on_step:
            on_step(i + 1)
    return x.to(dtype)


SAMPLERS: dict[str, Sampler] = {"heun": heun, "euler": euler}
