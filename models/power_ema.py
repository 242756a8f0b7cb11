"""Averages of weights whose length is chosen afterwards (Karras et al. 2024, EDM2, section 3).

The average of power `gamma` weighs the weights of step s, of t, by s^gamma: its width, the standard
deviation of that profile over t, is the same share of the training however long it lasts. A few
widths are tracked and their averages stored at times; any other width at any step is then a linear
combination of what was stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.errors import ConfigError

WIDEST = 0.288
"""gamma = 0, the plain mean, has the width 12^(-1/2)."""


@dataclass(frozen=True)
class Profile:
    """`p(s) = (gamma + 1) s^gamma / step^(gamma + 1)` for s up to `step`."""

    step: int
    gamma: float

    def dot(self, other: "Profile") -> float:
        """The integral of the product of two profiles (EDM2, eq. 30)."""
        first, second = sorted((self, other), key=lambda p: p.step)
        power = (first.step / second.step) ** second.gamma
        scale = (first.gamma + 1) * (second.gamma + 1) / (first.gamma + second.gamma + 1)
        return scale * power / second.step


def gamma_of(width: float) -> float:
    """The power of a profile of this width. Raises `ConfigError` for a width that none has."""
    if not 0.001 <= width <= WIDEST:
        raise ConfigError(f"an average's width must lie in 0.001 to {WIDEST}, got {width}")
    # width^2 = (gamma + 1) / ((gamma + 2)^2 (gamma + 3)).
    inverse = width**-2
    roots = np.roots([1, 7, 16 - inverse, 12 - inverse])
    return float(roots[np.isreal(roots)].real.max())


def decay(gamma: float, step: int) -> float:
    """By which the average so far is multiplied at step `step`, counted from 1."""
    return (1 - 1 / step) ** (gamma + 1)


def combination(stored: Sequence[Profile], wanted: Profile) -> list[float]:
    """Factors of the stored averages whose sum comes closest to the wanted one, in the mean square
    of the profiles; they add to 1."""
    n = len(stored)
    # The last row and column hold the factors to their sum (Lagrange).
    system = np.ones((n + 1, n + 1))
    system[n, n] = 0
    system[:n, :n] = [[a.dot(b) for b in stored] for a in stored]
    # Profiles of neighbouring steps are nearly alike: the least squares of a scaled system.
    right = np.array([*(a.dot(wanted) for a in stored), 1.0])
    size = np.sqrt(np.append(np.diag(system)[:n], 1.0))
    scaled = system / size[:, None] / size[None, :]
    return list(np.linalg.lstsq(scaled, right / size, rcond=1e-12)[0][:n] / size[:n])
