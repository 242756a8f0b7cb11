"""Solvers of the probability-flow ODE.

With `x = clean + sigma * noise` it is dx/dsigma = (x - D(x; sigma)) / sigma (Karras et al. 2022,
eq. 4 with s(t) = 1, sigma(t) = t). In the coordinates of flow matching, `y = x / (1 + sigma)` and
`t = sigma / (1 + sigma)`, it reads dy/dt = (y - D) / t, the same form; a `Path` says which of the
two a solver steps along. Euler's steps are the same in both, Heun's are not.

Every sampler is a function `(denoise, x, sigmas, on_step, path) -> x`, and keeps its state in
double precision.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

Denoise = Callable[[Tensor, float], Tensor]
"""`(x, sigma) -> D(x; sigma)`, shapes alike."""
OnStep = Callable[[int], None] | None
Path = Literal["edm", "flow"]
Sampler = Callable[[Denoise, Tensor, list[float], OnStep, Path], Tensor]

FLOW_SIGMA_MAX = 1e5
"""Stands for the infinite sigma at t = 1; a float32 cannot tell such noise from noise alone."""


def karras_sigmas(num_steps: int, sigma_min: float, sigma_max: float, rho: float) -> list[float]:
    """Noise levels from `sigma_max` down to `sigma_min` and then 0 (Karras et al. 2022, eq. 5)."""
    steps = torch.linspace(0, 1, num_steps, dtype=torch.float64)
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    return [*((high + steps * (low - high)) ** rho).tolist(), 0.0]


def flow_sigmas(num_steps: int, shift: float) -> list[float]:
    """Noise levels of equal steps of t from 1 to 0, then multiplied by `shift`."""
    times = [1 - i / num_steps for i in range(1, num_steps)]
    return [FLOW_SIGMA_MAX, *(min(shift * t / (1 - t), FLOW_SIGMA_MAX) for t in times), 0.0]


def _coordinates(sigma: float, path: Path) -> tuple[float, float]:
    """The independent variable at `sigma`, and what of x is the state."""
    return (sigma, 1.0) if path == "edm" else (sigma / (1 + sigma), 1 / (1 + sigma))


def euler(
    denoise: Denoise,
    x: Tensor,
    sigmas: list[float],
    on_step: OnStep = None,
    path: Path = "edm",
) -> Tensor:
    """First order: one evaluation a step."""
    return _solve(denoise, x, sigmas, on_step, path, corrected=False)


def heun(
    denoise: Denoise,
    x: Tensor,
    sigmas: list[float],
    on_step: OnStep = None,
    path: Path = "edm",
) -> Tensor:
    """Second order: algorithm 1 of Karras et al. 2022 without churn.

    The correction evaluates the denoiser at the predicted point and the next noise level; the last
    step, to sigma 0, is Euler's, since the slope is undefined there.
    """
    return _solve(denoise, x, sigmas, on_step, path, corrected=True)


def _solve(
    denoise: Denoise,
    x: Tensor,
    sigmas: list[float],
    on_step: OnStep,
    path: Path,
    *,
    corrected: bool,
) -> Tensor:
    dtype = x.dtype

    def slope(state: Tensor, sigma: float) -> Tensor:
        level, scale = _coordinates(sigma, path)
        return (state - denoise((state / scale).to(dtype), sigma).double()) / level

    state = x.double() * _coordinates(sigmas[0], path)[1]
    for i, (sigma, following) in enumerate(pairwise(sigmas)):
        width = _coordinates(following, path)[0] - _coordinates(sigma, path)[0]
        here = slope(state, sigma)
        predicted = state + width * here
        if corrected and following > 0:
            predicted = state + width * 0.5 * (here + slope(predicted, following))
        state = predicted
        if on_step:
            on_step(i + 1)
    return (state / _coordinates(sigmas[-1], path)[1]).to(dtype)


SAMPLERS: dict[str, Sampler] = {"heun": heun, "euler": euler}
