"""Decoded pictures on one line of time: each lasts until the next, and damage leaves holes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from av.video.frame import VideoFrame

SAME_S = 5e-7
"""Times nearer than this are equal."""
_BACK_S = 1.0
"""A longer step back in time is the joint of two recordings, a shorter one a bad timestamp."""
_AHEAD_S = 10.0
"""A longer step ahead is such a joint too, in containers that are made to be joined (MPEG-TS and
MPEG-PS); FFmpeg's own limit."""


@dataclass(frozen=True, kw_only=True)
class RawFrame:
    """One decoded picture before any conversion; see `VideoReader.rgb` and `VideoReader.yuv`."""

    pts_s: float
    duration_s: float
    picture: VideoFrame


@dataclass(kw_only=True)
class Health:
    """What decoding met. Filled while frames are read; complete when the iterator is exhausted."""

    num_frames: int = 0
    num_errors: int = 0
    lost_s: list[tuple[float, float]] = field(default_factory=list)
    """Spans without a trustworthy picture: from the first error to the next clean key frame."""
    end_s: float = 0.0
    """Where the last good frame ends."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """What a stream says of its times.

    Recordings that were joined without new timestamps continue where the one before ended.
    """

    stamp: Callable[[VideoFrame], int | None]
    """A picture's time of presentation in ticks; None continues where the one before ended."""
    origin: int
    """The tick that is time 0."""
    frame_s: float
    """How long a picture lasts that does not say it."""
    declared_s: float
    """The length in the header; 0 if unknown."""
    of_pictures: bool
    """Whether that is the length of the pictures, not of the sound."""
    joins: bool
    """Whether the container is made to be joined."""


def is_joint(step_s: float, joins: bool) -> bool:
    """Whether a step in time is too large for one recording; `joins` as in `Clock`."""
    return step_s < -_BACK_S or (joins and step_s > _AHEAD_S)


class Timeline:
    """One pass over pictures, in order of presentation.

    Args:
        health: filled on the way.
    """

    def __init__(self, clock: Clock, health: Health) -> None:
        self._clock = clock
        self._health = health
        self._shift_s = self._shift_before_s = 0.0
        self._dropped_end_s = 0.0
        """Where the pictures end that were left out since the last good one."""

    def frames(self, pictures: Iterable[tuple[VideoFrame | None, bool]]) -> Iterator[RawFrame]:
        """Good pictures, each lasting until the next one unless damage lies between.

        Args:
            pictures: each with whether it is bad; (None, True) is an error without a picture.
        """
        lost_s = self._health.lost_s
        held: RawFrame | None = None
        for frame, damaged in self._trusted(pictures):
            if held is None:
                if damaged and frame.pts_s > 0:
                    lost_s.append((0.0, frame.pts_s))
            elif damaged:
                end_s = min(held.pts_s + held.duration_s, frame.pts_s)
                if end_s < frame.pts_s:
                    lost_s.append((end_s, frame.pts_s))
                yield self._good(held, end_s)
            else:
                yield self._good(held, frame.pts_s)
            held = frame
        if held is not None:
            end_s = self._last_end_s(held)
            frame = self._good(held, end_s)
            missing_to_s = self._missing_to_s(end_s)
            if missing_to_s is not None:
                lost_s.append((end_s, missing_to_s))
            yield frame

    def _trusted(
        self, pictures: Iterable[tuple[VideoFrame | None, bool]]
    ) -> Iterator[tuple[RawFrame, bool]]:
        """Good pictures with their own durations, and whether damage lies right before each."""
        damaged = False
        last_s: float | None = None
        end_s = 0.0
        for picture, bad in pictures:
            if bad:
                self._health.num_errors += 1
                damaged = True
            if picture is None:
                continue
            tick_s = Fraction(picture.time_base or 1)
            stamp = self._clock.stamp(picture)
            if stamp is None:
                pts_s = end_s
            else:
                pts_s = float((stamp - self._clock.origin) * tick_s) + self._shift_s
            if last_s is not None:
                pts_s = self._past_strays(pts_s, last_s)
            if last_s is None:
                if pts_s < -SAME_S:
                    continue  # before the start that the file declares: an edit list hides it
            elif is_joint(pts_s - last_s, self._clock.joins):
                if bad:
                    continue
                joint_s = max(end_s, self._dropped_end_s)
                self._shift_before_s = self._shift_s
                self._shift_s += joint_s - pts_s
                pts_s = joint_s
            elif abs(pts_s - last_s) < SAME_S:
                continue  # there is no time for a second picture of the same instant
            elif pts_s < last_s:
                if not bad:
                    self._health.num_errors += 1
                bad = damaged = True
            duration_s = float((picture.duration or 0) * tick_s) or self._clock.frame_s
            if bad or (damaged and not picture.key_frame):
                if last_s is not None:  # before the first good one, all is lost anyway
                    self._dropped_end_s = max(self._dropped_end_s, pts_s + duration_s)
                continue
            yield RawFrame(pts_s=pts_s, duration_s=duration_s, picture=picture), damaged
            damaged, self._dropped_end_s = False, 0.0
            last_s, end_s = pts_s, pts_s + duration_s

    def _past_strays(self, pts_s: float, last_s: float) -> float:
        """A time after what looked like a joint and was one stray timestamp: the time of before
        goes on, where it fits."""
        back_s = pts_s - self._shift_s + self._shift_before_s
        if pts_s - last_s > _BACK_S and abs(back_s - last_s) <= _BACK_S:
            self._shift_s = self._shift_before_s
            return back_s
        return pts_s

    def _last_end_s(self, last: RawFrame) -> float:
        """The header's end where it is near; the last picture's own duration is often wrong."""
        declared_s, frame_s = self._clock.declared_s, self._clock.frame_s
        if not self._shift_s and last.pts_s < declared_s <= last.pts_s + 2 * frame_s:
            return declared_s
        return last.pts_s + min(last.duration_s, 2 * frame_s)

    def _missing_to_s(self, end_s: float) -> float | None:
        """The end of what is missing after the last good picture, or None where all is there."""
        frame_s, errors = self._clock.frame_s, self._health.num_errors
        if not self._shift_s:  # of joined recordings the header knows one
            gap_s = self._clock.declared_s - end_s
            cut_off = self._clock.of_pictures and gap_s > max(0.5, 2 * frame_s)
            if cut_off or (errors and gap_s > 0.5 * frame_s):
                return self._clock.declared_s
        return self._dropped_end_s if self._dropped_end_s > end_s + 0.5 * frame_s else None

    def _good(self, held: RawFrame, end_s: float) -> RawFrame:
        self._health.num_frames += 1
        self._health.end_s = end_s
        return RawFrame(pts_s=held.pts_s, duration_s=end_s - held.pts_s, picture=held.picture)
