"""Loss weights: factors on the squared error of the denoised data, by noise level.

The signal-to-noise ratio is that of data of standard deviation `d`: `snr = d^2 / sigma^2`.
"""

from torch import Tensor

from models.objectives.config import ObjectiveConfig
from models.objectives.targets import Scalings


def weight(config: ObjectiveConfig, sigma: Tensor, scalings: Scalings) -> Tensor:
    """`sigma [n]` and its scalings to `[n]`.

    - output: `1 / c_out^2`, the plain squared error of the network's output. For edm that is the
      weight of Karras et al. 2022, table 1; for epsilon it is the snr; for flow `1 / t^2`.
    - clean: `1 / d^2`, the squared error of `clean / d`.
    - min_snr: `min(snr, gamma) / d^2` (Hang et al. 2023).
    - soft_min_snr: `gamma snr / (snr + gamma) / d^2`, the same without its kink (Crowson et al.
      2024).
    """
    d, gamma = config.sigma_data, config.snr_gamma
    if config.weight == "output":
        return 1 / scalings.c_out**2
    if config.weight == "clean":
        return sigma * 0 + d**-2
    snr = d**2 / sigma**2
    if config.weight == "min_snr":
        return snr.clamp(max=gamma) / d**2
    return gamma * snr / (snr + gamma) / d**2
