"""Flashes, as the rules against seizures count them."""

from typing import Any

import cv2
import numpy as np

from common.tape import Spill, Tape
from curation.config import AnalysisConfig
from curation.measures.base import Measure, Picture, Values

_GRID = 4
_DARKER = 0.8
_AREA = 0.25


class Flashes(Measure):
    name = "flashes"
    every_frame = True

    def __init__(self, config: AnalysisConfig, spill: Spill) -> None:
        super().__init__(config, spill)
        self._step = config.flash_step
        self._tape = Tape(spill, ("light", np.uint8, (_GRID * _GRID,)))
        """Relative luminance, 0 to 255, of 4 x 4 parts of the picture."""

    @classmethod
    def params(cls, config: AnalysisConfig) -> dict[str, Any]:
        return {"step": config.flash_step}

    def feed(self, picture: Picture, sampled: bool) -> None:
        light = cv2.LUT(picture.tiny, _LUMINANCE)
        parts = cv2.resize(light, (_GRID, _GRID), interpolation=cv2.INTER_AREA)
        self._tape.append(picture.pts_us, parts.ravel())

    def over(self, start_us: int, end_us: int) -> Values:
        """The most general flashes in any second of a span.

        A flash is a pair of opposing changes of relative luminance by 0.1 or more, the darker state
        being below 0.8 (WCAG 2.2, "general flash"; ITU-R BT.1702). It counts where a quarter of the
        picture, in sixteenths, flashes so often.
        """
        rows = self._tape.between(start_us, end_us)
        if len(rows) < 2:
            return {"flashes": None}
        light = rows["light"]
        candidates = np.flatnonzero(np.ptp(light, axis=0) >= self._step * 255)
        needed = round(_AREA * _GRID * _GRID)
        if len(candidates) < needed:
            return {"flashes": 0.0}
        rates = sorted(
            (self._rate(light[:, part] / 255.0, rows["at"]) for part in candidates),
            reverse=True,
        )
        return {"flashes": rates[needed - 1]}

    def _rate(self, light: np.ndarray, times: np.ndarray) -> float:
        """The most flashes in any second of one series."""
        turns: list[int] = []
        low = high = float(light[0])
        rising = 0
        for value, at in zip(light.tolist(), times.tolist(), strict=True):
            low, high = min(low, value), max(high, value)
            if rising <= 0 and value - low >= self._step and low < _DARKER:
                turns.append(at)
                rising, low, high = 1, value, value
            elif rising >= 0 and high - value >= self._step and value < _DARKER:
                turns.append(at)
                rising, low, high = -1, value, value
        if not turns:
            return 0.0
        inside = np.searchsorted(turns, np.array(turns) + 1_000_000) - np.arange(len(turns))
        return float(inside.max()) / 2


def _luminance() -> np.ndarray:
    """Grey levels to relative luminance: sRGB's curve, as in WCAG 2.2."""
    level = np.arange(256) / 255
    linear = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)
    return np.round(linear * 255).astype(np.uint8)


_LUMINANCE = _luminance()
