"""What measures have in common: the pictures they are shown, and how they answer.

A measure takes frames while they pass and keeps numbers, never pictures, and on disk what may grow
with the length of the footage. It stands alone: it knows
nothing of other measures, so that one whose parameters change is measured again without the rest.
Times are those of presentation, in microseconds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import cv2
import numpy as np

from common.tape import Spill
from curation.config import AnalysisConfig

Values = dict[str, float | None]
"""Score to value; None where it cannot be told."""


class Score(NamedTuple):
    """`value` means something only where `valid`; a clip without a pair of frames has no motion,
    which is not the same as motion 0."""

    value: float
    valid: bool


class Picture:
    """One frame on the reduced plane, and what several measures make of it.

    Args:
        bgr: `uint8 [H, W, 3]`.
        grey: `uint8 [H, W]`, brightness of full range.
        coded: gives the brightness as it was coded, where the format has one.
        shown: gives the brightness as displayed, of full range and unscaled: `uint8 [H', W']`.
    """

    def __init__(
        self,
        pts_us: int,
        bgr: np.ndarray,
        grey: np.ndarray,
        *,
        coded: Callable[[], np.ndarray | None] = lambda: None,
        shown: Callable[[], np.ndarray | None] = lambda: None,
    ) -> None:
        self.pts_us = pts_us
        self.bgr = bgr
        self.grey = grey
        self.coded = coded
        self.shown = shown

    @cached_property
    def slopes(self) -> tuple[np.ndarray, np.ndarray]:
        """`float32 [H, W]` each: gradient to the right and down, grey levels per pixel."""
        return (
            cv2.Sobel(self.grey, cv2.CV_32F, 1, 0, scale=1 / 8),
            cv2.Sobel(self.grey, cv2.CV_32F, 0, 1, scale=1 / 8),
        )

    @cached_property
    def steepness(self) -> np.ndarray:
        """`float32 [H, W]`: squared length of the gradient."""
        across, down = self.slopes
        return across * across + down * down

    @cached_property
    def tiny(self) -> np.ndarray:
        """`uint8 [45, 80]`, or `[80, 45]` where the picture is upright."""
        size = (80, 45) if self.grey.shape[1] >= self.grey.shape[0] else (45, 80)
        return cv2.resize(self.grey, size, interpolation=cv2.INTER_AREA)


class Measure(ABC):
    """One kind of measurement, which gives one score or a few.

    Args:
        spill: where the numbers of frames wait for the clips' ends.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised whenever the same parameters begin to give other values."""
    every_frame: ClassVar[bool] = False
    """Whether it is shown all frames, or those that are sampled alone."""

    def __init__(self, config: AnalysisConfig, spill: Spill) -> None:
        self._config = config

    @classmethod
    def params(cls, config: AnalysisConfig) -> dict[str, Any]:
        """What of the configuration changes the values, as plain values; for sampled measures the
        rate of sampling."""
        return {} if cls.every_frame else {"samples_per_s": config.samples_per_s}

    @abstractmethod
    def feed(self, picture: Picture, sampled: bool) -> None:
        """Takes the next frame."""

    @abstractmethod
    def over(self, start_us: int, end_us: int) -> Values:
        """The scores of a span."""

    def interrupt(self) -> None:  # noqa: B027 - most have nothing to forget
        """Footage is missing here: nothing is measured across the hole."""


class Schedule:
    """Says at which frames something is due that is done so often a second, on a fixed grid."""

    def __init__(self, per_s: float) -> None:
        self._period_us = round(1e6 / per_s)
        self._next_us = 0

    def due(self, pts_us: int) -> bool:
        if pts_us < self._next_us:
            return False
        self._next_us = (pts_us // self._period_us + 1) * self._period_us
        return True


def as_score(value: float | None) -> Score:
    """Rounded as scores are stored; None is not valid."""
    if value is None:
        return Score(value=0.0, valid=False)
    return Score(value=round(value, 6), valid=True)


def median(values: Sequence[float] | np.ndarray) -> float | None:
    return float(np.median(values)) if len(values) else None
