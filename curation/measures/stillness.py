"""How much of a clip stands still: stills, slideshows, repeated frames."""

import math
from typing import Any

import cv2
import numpy as np

from common.tape import Spill, Tape
from curation.config import AnalysisConfig
from curation.measures.base import Measure, Picture, Values

_LEAST_FRAMES = 8
"""Fewer moving frames tell nothing of how many are repeated."""


class Stillness(Measure):
    """Pictures are equal as in FFmpeg's `freezedetect`: up to `still_db` of mean absolute
    difference, -60 dB by itself, here on the reduced plane."""

    name = "stillness"
    every_frame = True

    def __init__(self, config: AnalysisConfig, spill: Spill) -> None:
        super().__init__(config, spill)
        self._equal = 10 ** (config.still_db / 20)
        self._still_us = round(config.still_s * 1e6)
        self._tape = Tape(spill, ("change", np.float32))
        """Mean absolute difference to the frame before, 0 to 1; NaN where there is none."""
        self._before: np.ndarray | None = None

    @classmethod
    def params(cls, config: AnalysisConfig) -> dict[str, Any]:
        return {"still_db": config.still_db, "still_s": config.still_s}

    def feed(self, picture: Picture, sampled: bool) -> None:
        grey, before = picture.grey, self._before
        self._before = grey
        change = math.nan
        if before is not None:
            change = cv2.norm(before, grey, cv2.NORM_L1) / (255 * grey.size)
        self._tape.append(picture.pts_us, change)

    def interrupt(self) -> None:
        self._before = None

    def over(self, start_us: int, end_us: int) -> Values:
        """`freeze_s` is the longest time for which the picture stays the same, in seconds;
        `freeze` the share of time in stills, which stay for half a second or longer; `slideshow`
        the same where there is more than one of them, else 0; `duplicate_frames` the share of
        frames, outside of stills, that repeat the one before, as conversions of the frame rate
        leave them."""
        rows = self._tape.between(start_us, end_us)
        if len(rows) < 2:
            return dict.fromkeys(("freeze_s", "freeze", "slideshow", "duplicate_frames"))
        times = np.append(rows["at"], end_us)
        changed = ~(rows["change"][1:] <= self._equal)
        begins = np.append(0, np.flatnonzero(changed) + 1)
        lengths = np.diff(np.append(times[begins], end_us))
        frames = np.diff(np.append(begins, len(rows)))
        stills = lengths >= self._still_us
        share = float(lengths[stills].sum() / (end_us - start_us))
        num_moving = int(frames[~stills].sum())
        repeats = int((frames[~stills] - 1).sum())
        return {
            "freeze_s": float(lengths.max() / 1e6),
            "freeze": min(share, 1.0),
            "slideshow": min(share, 1.0) if stills.sum() > 1 else 0.0,
            "duplicate_frames": (
                repeats / (num_moving - 1) if num_moving > _LEAST_FRAMES else None
            ),
        }
