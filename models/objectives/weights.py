"""Loss weights as functions of sigma, `[n]` to `[n]`, for the squared error of the denoiser."""

from torch import Tensor


def edm_weight(sigma: Tensor, sigma_data: float) -> Tensor:
    """1 / c_out^2 (Karras et al. 2022, table 1): unit weight on the raw network output."""
    return (sigma**2 + sigma_data**2) / (sigma * sigma_data) ** 2
