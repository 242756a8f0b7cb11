"""The default detector: hard cuts by change and likeness, gradual transitions as blends.

Cuts are found as the library's adaptive detector finds them, by a change that is large beside those
around it, on small pictures that repeat none: a video of 30 pictures shown at 60 per second changes
by nothing and by much in turn, which looks like cuts. Each candidate is then held against the
likeness of what is before and after. Gradual transitions are those of `curation.shots.dissolves`,
under the same condition.
"""

import itertools

import cv2
import numpy as np

from curation.config import ShotsConfig
from curation.shots.dissolves import LONGEST_S, Blend, find_blends
from curation.shots.finder import Boundary
from curation.shots.likeness import likeness

SMALL = (32, 18)
"""Width and height of small pictures, whatever the source's shape."""
_DETAIL = (80, 45)
_PARTS = (4, 4)
_SAME_LEVELS = 0.3
"""Mean change under which a picture repeats the one before."""
_LEAST_CHANGE_LEVELS = 6.0
_LEAST_RATIO = 2.0
_AROUND = 2
"""Pictures on either side that a change is held against."""
_NEAR_S = 0.35
"""How far to either side a likeness is looked for; flashes are shorter."""
_BLOCK_S = 60.0
_BLOCK_FRAMES = 4096
_OVERLAP_S = LONGEST_S + 1.0


class BlendFinder:
    """Holds small pictures of a minute; older ones are settled and forgotten."""

    def __init__(self, config: ShotsConfig) -> None:
        self._max_likeness = config.max_likeness
        self._gradual = config.gradual
        self._boundaries: list[Boundary] = []
        self._begin()

    def _begin(self) -> None:
        self._times_us: list[int] = []
        self._pictures: list[np.ndarray] = []
        self._detail: list[np.ndarray] = []
        self._settled_us = -1
        """Boundaries that begin before it are known."""

    def feed(self, pts_us: int, bgr: np.ndarray, grey: np.ndarray) -> None:
        self._times_us.append(pts_us)
        self._pictures.append(cv2.resize(bgr, SMALL, interpolation=cv2.INTER_AREA))
        self._detail.append(detail_of(grey))
        long = pts_us - self._times_us[0] > _BLOCK_S * 1e6
        if long or len(self._times_us) >= _BLOCK_FRAMES:
            self._settle(last=False)

    def interrupt(self) -> None:
        self._settle(last=True)

    def boundaries(self) -> list[Boundary]:
        self._settle(last=True)
        return self._boundaries

    def _settle(self, *, last: bool) -> None:
        """Takes over what later frames cannot change, all of it where none come."""
        if not self._times_us:
            return
        times_us = np.array(self._times_us)
        found = self._find(times_us / 1e6, np.stack(self._pictures), np.stack(self._detail))
        found = [(int(times_us[a]), int(times_us[b])) for a, b in found]
        sure_us = int(times_us[-1]) + 1 if last else int(times_us[-1] - _OVERLAP_S * 1e6)
        for start, end in found:
            if start < sure_us <= end:
                sure_us = start
        self._boundaries += [b for b in found if self._settled_us <= b[0] < sure_us]
        if last:
            self._begin()
            return
        # What a window needs before it stays, too.
        keep = int(np.searchsorted(times_us, min(sure_us, times_us[-1]) - _OVERLAP_S * 1e6))
        keep = max(keep, len(times_us) - _BLOCK_FRAMES // 2)
        self._times_us = self._times_us[keep:]
        self._pictures = self._pictures[keep:]
        self._detail = self._detail[keep:]
        self._settled_us = max(self._settled_us, sure_us)

    def _find(
        self, times_s: np.ndarray, pictures: np.ndarray, detail: np.ndarray
    ) -> list[tuple[int, int]]:
        """Pairs of numbers of frames: the first that is no more of the shot before, and the first
        of the next one."""
        cuts = [
            at
            for at in _candidates(pictures)
            if self._differ(times_s, pictures, at - 1, at, 0, len(times_s))
        ]
        found = [(at, at) for at in cuts]
        if not self._gradual:
            return found
        edges = [0, *cuts, len(times_s)]
        for begin, stop in itertools.pairwise(edges):
            part = slice(begin, stop)
            for blend in find_blends(times_s[part], pictures[part], detail[part]):
                blend = Blend(
                    start=begin + blend.start, end=begin + blend.end, evidence=blend.evidence
                )
                if self._differ(times_s, pictures, blend.start, blend.end, begin, stop):
                    found.append((blend.start + 1, blend.end))
        return sorted(found)

    def _differ(
        self,
        times_s: np.ndarray,
        pictures: np.ndarray,
        before: int,
        after: int,
        begin: int,
        stop: int,
    ) -> bool:
        """Whether the pictures up to `before` show another scene than those from `after` on,
        looking no further than `begin` and `stop`."""
        first = int(np.searchsorted(times_s, times_s[before] - _NEAR_S))
        past = int(np.searchsorted(times_s, times_s[after] + _NEAR_S))
        one = pictures[max(begin, first) : before + 1]
        other = pictures[after : min(stop, past)]
        return likeness(one, other) < self._max_likeness


def detail_of(grey: np.ndarray) -> np.ndarray:
    """`float32 [16]`: mean squared gradient in the parts of a brightness `uint8 [H, W]`."""
    small = cv2.resize(grey, _DETAIL, interpolation=cv2.INTER_AREA).astype(np.float32)
    square = np.zeros_like(small)
    square[:, 1:] += np.diff(small, axis=1) ** 2
    square[1:] += np.diff(small, axis=0) ** 2
    return cv2.resize(square, _PARTS, interpolation=cv2.INTER_AREA).ravel()


def _candidates(pictures: np.ndarray) -> list[int]:
    """Numbers of frames before which the picture changes as it does at a cut."""
    changes = np.array(
        [cv2.absdiff(one, other).mean() for one, other in itertools.pairwise(pictures)]
    )
    numbers = np.flatnonzero(changes >= _SAME_LEVELS)
    change = changes[numbers]
    padded = np.pad(change, _AROUND, constant_values=np.nan)
    lags = [_AROUND + lag for lag in range(-_AROUND, _AROUND + 1) if lag]
    around = np.stack([padded[lag : lag + len(change)] for lag in lags])
    num = np.maximum((~np.isnan(around)).sum(0), 1)
    mean = np.nansum(around, 0) / num
    strong = (change >= _LEAST_CHANGE_LEVELS) & (change >= _LEAST_RATIO * mean)
    return (numbers[strong] + 1).tolist()
