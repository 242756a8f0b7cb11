"""What a network's output means: five targets behind one form.

Everywhere `x = clean + sigma * noise`, and `D(x; sigma) = c_skip x + c_out F(c_in x, c_noise)` is
the estimate of clean data from the network F (Karras et al. 2022, eq. 7). Data has standard
deviation sigma_data, here `d`.

What F estimates:

- edm: what gives input and target of F unit variance at every level (Karras et al. 2022, table 1);
- v: `a noise - b clean / d`, with b / a = sigma / d and a^2 + b^2 = 1 (Salimans and Ho 2022,
  section 4);
- x0: `clean / d`;
- epsilon: the noise (Ho et al. 2020);
- flow: the velocity `noise - clean` of `(1 - t) clean + t noise`, t = sigma / (1 + sigma) (Lipman
  et al. 2023; Liu et al. 2023).

v is edm with the other sign. For flow the network sees `(1 - t) x` and is told t.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from models.objectives.config import Target


@dataclass(frozen=True)
class Scalings:
    """Per-sample factors of `D(x) = c_skip x + c_out F(c_in x, c_noise)`, each `[n]`."""

    c_skip: Tensor
    c_out: Tensor
    c_in: Tensor
    c_noise: Tensor


Precondition = Callable[[Tensor], Scalings]
"""`sigma [n]` to its scalings."""


def precondition(target: Target, sigma_data: float) -> Precondition:
    """The scalings of a target."""
    make = {"edm": _edm, "v": _v, "x0": _x0, "epsilon": _epsilon, "flow": _flow}[target]
    return lambda sigma: make(sigma, sigma_data)


def _edm(sigma: Tensor, d: float) -> Scalings:
    total = sigma**2 + d**2
    return Scalings(
        c_skip=d**2 / total,
        c_out=sigma * d / total.sqrt(),
        c_in=1 / total.sqrt(),
        c_noise=sigma.log() / 4,
    )


def _v(sigma: Tensor, d: float) -> Scalings:
    s = _edm(sigma, d)
    return Scalings(s.c_skip, -s.c_out, s.c_in, s.c_noise)


def _x0(sigma: Tensor, d: float) -> Scalings:
    s = _edm(sigma, d)
    return Scalings(sigma * 0, sigma * 0 + d, s.c_in, s.c_noise)


def _epsilon(sigma: Tensor, d: float) -> Scalings:
    s = _edm(sigma, d)
    return Scalings(sigma * 0 + 1, -sigma, s.c_in, s.c_noise)


def _flow(sigma: Tensor, d: float) -> Scalings:
    t = sigma / (1 + sigma)
    return Scalings(c_skip=1 / (1 + sigma), c_out=-t, c_in=1 / (1 + sigma), c_noise=t)
