"""How sharp a clip is."""

import cv2
import numpy as np

from common.tape import Spill, Tape
from curation.config import AnalysisConfig
from curation.measures.base import Measure, Picture, Values, median

# Rounding to whole grey levels is noise of variance 1/12; a filter multiplies it by the sum of its
# squared weights. Left in, it would make the smoothest pictures the sharpest.
_BEND_OF_ROUNDING = (4**2 + 4 * 1**2) / 12
_SLOPE_OF_ROUNDING = 2 * (4 * 1**2 + 2 * 2**2) / 8**2 / 12
_LEAST_SLOPE = 0.1
"""Grey levels squared per pixel squared: below it there are no edges to judge by."""


class Focus(Measure):
    name = "focus"

    def __init__(self, config: AnalysisConfig, spill: Spill) -> None:
        super().__init__(config, spill)
        self._tape = Tape(spill, ("sharp", np.float64))

    def feed(self, picture: Picture, sampled: bool) -> None:
        if sampled:
            sharp = sharpness(picture.grey, picture.steepness)
            if sharp is not None:
                self._tape.append(picture.pts_us, sharp)

    def over(self, start_us: int, end_us: int) -> Values:
        return {"blur": median(self._tape.between(start_us, end_us)["sharp"])}


def sharpness(grey: np.ndarray, steepness: np.ndarray) -> float | None:
    """Variance of the Laplacian over the mean squared gradient; low is blurred.

    The variance of the Laplacian alone (Pech-Pacheco et al. 2000) follows contrast and texture as
    much as focus: a night sky counts as blurred and a blocky picture as sharp. Divided by the
    energy of the first derivative, what is left is the mean squared spatial frequency of the
    edges. None where the picture has no edges to judge by.

    Args:
        grey: `uint8 [H, W]` on the fixed plane, because the value depends on scale.
        steepness: `float32 [H, W]`, its squared gradient.
    """
    energy = float(steepness.mean()) - _SLOPE_OF_ROUNDING
    if energy < _LEAST_SLOPE:
        return None
    bend = float(cv2.Laplacian(grey, cv2.CV_32F).var()) - _BEND_OF_ROUNDING
    return max(0.0, bend) / energy
