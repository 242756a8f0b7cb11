"""PySceneDetect's detectors, fed from our own decode with the frames' own timestamps."""

from fractions import Fraction
from typing import Any

import numpy as np
from scenedetect.common import FrameTimecode, Timecode
from scenedetect.detector import SceneDetector
from scenedetect.detectors import (
    AdaptiveDetector,
    ContentDetector,
    HashDetector,
    HistogramDetector,
)

from curation.config import ShotsConfig
from curation.shots.finder import Boundary

_MICROSECOND = Fraction(1, 1_000_000)


class LibraryFinder:
    """Hard cuts by one detector of PySceneDetect, with its own default threshold unless one is
    given."""

    def __init__(self, config: ShotsConfig, *, fps: float) -> None:
        self._config = config
        # Only the detector's arithmetic on frame counts sees the rate; times are compared exactly.
        self._rate = Fraction(fps).limit_denominator(1001) if fps > 0 else Fraction(25)
        self._cuts_us: list[int] = []
        self._detector = _detector(config)

    def feed(self, pts_us: int, bgr: np.ndarray, grey: np.ndarray) -> None:
        timecode = FrameTimecode(Timecode(pts_us, _MICROSECOND), fps=self._rate)
        self._cuts_us += [round(cut.pts) for cut in self._detector.process_frame(timecode, bgr)]

    def interrupt(self) -> None:
        self._detector = _detector(self._config)

    def boundaries(self) -> list[Boundary]:
        return [(at, at) for at in self._cuts_us]


def _detector(config: ShotsConfig) -> SceneDetector:
    name = "adaptive_threshold" if config.detector == "adaptive" else "threshold"
    settings: dict[str, Any] = {"min_scene_len": float(config.min_shot_s)}
    if config.threshold is not None:
        settings[name] = config.threshold
    return _DETECTORS[config.detector](**settings)


_DETECTORS: dict[str, type[SceneDetector]] = {
    "adaptive": AdaptiveDetector,
    "content": ContentDetector,
    "hash": HashDetector,
    "histogram": HistogramDetector,
}
