"""Shots: PySceneDetect's detector, fed from our own decode with the frames' own timestamps."""

from bisect import bisect_left, bisect_right
from fractions import Fraction
from itertools import pairwise

import numpy as np
from scenedetect.common import FrameTimecode, Timecode
from scenedetect.detectors import AdaptiveDetector

from curation.config import ShotsConfig

_MICROSECOND = Fraction(1, 1_000_000)
_LONGEST_HELD_US = 1_000_000


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


def longest_held_us(max_clip_us: int) -> int:
    """How long one picture may stand inside a clip. Beyond it there is no video but a slide or a
    pause of a screen recording, and clips could not keep to their longest length."""
    return min(_LONGEST_HELD_US, max_clip_us)


def split_spans(
    span_us: tuple[int, int], cuts_us: list[int], starts_us: np.ndarray, max_clip_us: int
) -> list[tuple[int, int]]:
    """A whole stretch into clips: at the cuts, around pictures that are held too long, and evenly
    where a shot is over the longest length.

    No clip is longer than `max_clip_us` but those of one held picture.

    Args:
        span_us: first frame's start and last frame's end.
        cuts_us: starts of new shots, rising.
        starts_us: `int64 [n]`, starts of all frames; clips begin at frames only.
    """
    first, last = span_us
    inside = starts_us[np.searchsorted(starts_us, first) : np.searchsorted(starts_us, last)]
    bounds = np.append(inside, last)
    held = np.flatnonzero(np.diff(bounds) > longest_held_us(max_clip_us))
    edges = {first, last, *bounds[held].tolist(), *bounds[held + 1].tolist()}
    edges.update(cuts_us[bisect_right(cuts_us, first) : bisect_left(cuts_us, last)])
    clips: list[tuple[int, int]] = []
    for start, end in pairwise(sorted(edges)):
        clips += _pieces(start, end, inside, max_clip_us)
    return clips


def _pieces(start: int, end: int, starts_us: np.ndarray, max_clip_us: int) -> list[tuple[int, int]]:
    """One shot in the fewest even pieces that keep to the longest length."""
    inner = starts_us[np.searchsorted(starts_us, start + 1) : np.searchsorted(starts_us, end)]
    if end - start <= max_clip_us or not len(inner):
        return [(start, end)]
    fewest = -(-(end - start) // max_clip_us)
    # Pieces begin at frames, so even ones may be over the limit by a frame: then one more.
    for count in range(fewest, 2 * fewest + 2):
        ideal = [start + (end - start) * k // count for k in range(1, count)]
        at = np.searchsorted(inner, ideal)
        edges = [start, *sorted({int(inner[i]) for i in at if i < len(inner)}), end]
        if max(b - a for a, b in pairwise(edges)) <= max_clip_us:
            return list(pairwise(edges))
    edges = [start]
    while end - edges[-1] > max_clip_us:
        edges.append(int(inner[np.searchsorted(inner, edges[-1] + max_clip_us, "right") - 1]))
    return list(pairwise([*edges, end]))
