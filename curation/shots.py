"""Shots: PySceneDetect's detector, fed from our own decode with the frames' own timestamps."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
from scenedetect.common import FrameTimecode, Timecode
from scenedetect.detectors import AdaptiveDetector

from curation.config import ShotsConfig

_MICROSECOND = Fraction(1, 1_000_000)


class ShotFinder:
    """Takes reduced frames in order and gives the times at which new shots begin."""

    def __init__(self, config: ShotsConfig, *, fps: float) -> None:
        self._config = config
        # Only the detector's arithmetic on frame counts sees the rate; times are compared exactly.
        self._rate = Fraction(fps).limit_denominator(1001) if fps > 0 else Fraction(25)
        self.cuts_us: list[int] = []
        self._begin()

    def _begin(self) -> None:
        self._detector = AdaptiveDetector(
            adaptive_threshold=self._config.min_ratio,
            min_scene_len=float(self._config.min_shot_s),
            window_width=self._config.window_frames,
            min_content_val=self._config.min_content,
        )

    def feed(self, pts_us: int, bgr: np.ndarray) -> None:
        """`bgr` is `uint8 [H, W, 3]`."""
        timecode = FrameTimecode(Timecode(pts_us, _MICROSECOND), fps=self._rate)
        self.cuts_us += [round(cut.pts) for cut in self._detector.process_frame(timecode, bgr)]

    def interrupt(self) -> None:
        """Footage is missing here: what follows is not compared with what came before."""
        self._begin()


def split_spans(
    span_us: tuple[int, int], cuts_us: list[int], starts_us: np.ndarray, max_clip_us: int
) -> list[tuple[int, int]]:
    """A whole stretch into clips: at the cuts, and evenly where a shot is over the longest length.

    Args:
        span_us: first frame's start and last frame's end.
        cuts_us: starts of new shots, rising.
        starts_us: `int64 [n]`, starts of all frames; clips begin at frames only.
    """
    edges = [span_us[0], *(c for c in cuts_us if span_us[0] < c < span_us[1]), span_us[1]]
    clips: list[tuple[int, int]] = []
    for start, end in pairwise(edges):
        pieces = max(1, -(-(end - start) // max_clip_us))
        ideal = [start + (end - start) * k // pieces for k in range(1, pieces)]
        at = np.searchsorted(starts_us, ideal)
        inner = sorted({int(starts_us[i]) for i in at if i < len(starts_us)} - {start, end})
        clips += zip([start, *inner], [*inner, end], strict=True)
    return clips
