"""When the frames of one source begin."""

from bisect import bisect_left

from common.tape import Spill, Tape

_LONGEST_HELD_US = 1_000_000


def longest_held_us(max_clip_us: int) -> int:
    """How long one picture may stand inside a clip. Beyond it there is no video but a slide or a
    pause of a screen recording, and clips could not keep to their longest length."""
    return min(_LONGEST_HELD_US, max_clip_us)


class FrameTimes:
    """Starts of frames, rising, in microseconds; memory holds the newest and the pauses.

    Args:
        max_clip_us: the longest clip, as in `longest_held_us`.
    """

    def __init__(self, spill: Spill, max_clip_us: int) -> None:
        self.max_clip_us = max_clip_us
        self._starts = Tape(spill)
        self._held: list[tuple[int, int]] = []
        self.first_us = self.last_us = 0
        """Of the first and the last frame."""

    def __len__(self) -> int:
        return len(self._starts)

    def append(self, start_us: int) -> None:
        if not len(self._starts):
            self.first_us = start_us
        elif start_us - self.last_us > longest_held_us(self.max_clip_us):
            self._held.append((self.last_us, start_us))
        self._starts.append(start_us)
        self.last_us = start_us

    def count(self, start_us: int, end_us: int) -> int:
        """How many frames begin in a span."""
        return self._starts.position(end_us) - self._starts.position(start_us)

    def next_from(self, at_us: int) -> int | None:
        """The first start at a time or later; None where there is none."""
        position = self._starts.position(at_us)
        return self._starts.time(position) if position < len(self._starts) else None

    def last_before(self, at_us: int) -> int | None:
        """The last start before a time; None where there is none."""
        position = self._starts.position(at_us)
        return self._starts.time(position - 1) if position else None

    def held(self, start_us: int, end_us: int) -> list[tuple[int, int]]:
        """Pictures that begin in a span and stand too long in it: where each begins and ends."""
        longest_us = longest_held_us(self.max_clip_us)
        inside = self._held[
            bisect_left(self._held, (start_us,)) : bisect_left(self._held, (end_us,))
        ]
        found = [(a, min(b, end_us)) for a, b in inside]
        last = self.last_before(end_us)
        if last is not None and last >= start_us and (not inside or inside[-1][0] != last):
            found.append((last, end_us))
        return [(a, b) for a, b in found if b - a > longest_us]
