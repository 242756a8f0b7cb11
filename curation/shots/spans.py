"""Boundaries between shots to clips."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from curation.shots.finder import Boundary
from curation.shots.frame_times import FrameTimes


def split_spans(
    span_us: tuple[int, int],
    boundaries_us: Sequence[Boundary],
    starts: FrameTimes,
    *,
    min_shot_us: int = 0,
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """A whole stretch into clips, and the transitions between them: at the boundaries, around
    pictures that are held too long, and evenly where a shot is over the longest length.

    No clip is longer than the longest length but those of one held picture. What lies between two
    boundaries, or a boundary and an end of the stretch, and is shorter than `min_shot_us` is no
    shot but part of the transition.

    Args:
        span_us: first frame's start and last frame's end.
        boundaries_us: rising and apart.
        starts: of all frames; clips begin at frames only.
    """
    first, last = span_us
    still = sorted({at for picture in starts.held(first, last) for at in picture})
    clips: list[tuple[int, int]] = []
    transitions = _joined(span_us, boundaries_us, min_shot_us)
    ends = [first, *(at for cut_out in transitions for at in cut_out), last]
    for begin, end in zip(ends[::2], ends[1::2], strict=True):
        if begin == end:
            continue
        edges = [begin, *still[bisect_right(still, begin) : bisect_left(still, end)], end]
        for start, stop in pairwise(edges):
            clips += _pieces(start, stop, starts)
    return clips, [(start, end) for start, end in transitions if end > start]


def _joined(
    span_us: tuple[int, int], boundaries_us: Sequence[Boundary], min_shot_us: int
) -> list[Boundary]:
    """Those inside the stretch, each with the crumbs of shots around it."""
    first, last = span_us
    joined: list[Boundary] = []
    for start, end in boundaries_us:
        if end < first or start > last or (start == end and start in span_us):
            continue
        begin, stop = max(start, first), min(end, last)
        if begin - first < min_shot_us:
            begin = first
        if last - stop < min_shot_us:
            stop = last
        if joined and begin - joined[-1][1] < min_shot_us:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((begin, stop))
    return joined


def _pieces(start: int, end: int, starts: FrameTimes) -> list[tuple[int, int]]:
    """One shot in the fewest even pieces that keep to the longest length."""
    max_clip_us = starts.max_clip_us
    second = starts.next_from(start + 1)
    if end - start <= max_clip_us or second is None or second >= end:
        return [(start, end)]
    fewest = -(-(end - start) // max_clip_us)
    # Pieces begin at frames, so even ones may be over the limit by a frame: then one more.
    for count in range(fewest, 2 * fewest + 2):
        ideal = [start + (end - start) * k // count for k in range(1, count)]
        inner = {starts.next_from(max(at, start + 1)) for at in ideal}
        edges = [start, *sorted(at for at in inner if at is not None and at < end), end]
        if max(b - a for a, b in pairwise(edges)) <= max_clip_us:
            return list(pairwise(edges))
    edges = [start]
    while end - edges[-1] > max_clip_us:
        edges.append(starts.last_before(edges[-1] + max_clip_us + 1) or end)
    return list(pairwise([*edges, end]))
