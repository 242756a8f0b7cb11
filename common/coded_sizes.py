"""How many bytes the pictures of a stream take, by their times."""

import heapq
import math

import numpy as np
from av.packet import Packet

from common.tape import Spill, Tape
from common.timeline import SAME_S

_REORDERED = 64
"""Packets come in order of decoding; by so many, at most, in another than that of their times. No
codec allows more than 16."""


class CodedSizes:
    """Filled while a stream is read once.

    Args:
        origin: the tick that is time 0.
        tick_s: how long a tick lasts.
        pixels: of one picture as it is coded.
        decode_times: whether the container knows times of decoding only.
        spill: where the sizes wait.
    """

    def __init__(
        self, *, origin: int, tick_s: float, pixels: int, decode_times: bool, spill: Spill
    ) -> None:
        self._origin = origin
        self._tick_s = tick_s
        self._pixels = pixels
        self._decode_times = decode_times
        self._tape = Tape(spill, ("num_bytes", np.int64))
        self._waiting: list[tuple[int, int]] = []
        self._last_dts: int | None = None
        self._last_tick = -math.inf
        self._known = True

    def note(self, packet: Packet) -> None:
        """Times are known as long as all packets tell theirs and they nowhere begin anew."""
        if not packet.size:
            return
        dts = packet.dts
        tick = dts if packet.pts is None or self._decode_times else packet.pts
        if tick is None or dts is None or (self._last_dts is not None and dts < self._last_dts):
            self._known = False
            return
        self._last_dts = dts
        heapq.heappush(self._waiting, (tick, packet.size))
        if len(self._waiting) > _REORDERED:
            self._settle()

    def bits_per_pixel(self, start_s: float, end_s: float, num_frames: int) -> float | None:
        """Coded bits over coded pixels of the pictures in a span; None where that is not known.
        Asked once all is read."""
        while self._waiting:
            self._settle()
        if not self._known or not num_frames or not self._pixels:
            return None
        first, past = (self._origin + math.floor(at / self._tick_s) for at in (start_s, end_s))
        rows = self._tape.between(first - 2, past + 2)
        times = (rows["at"] - self._origin) * self._tick_s
        inside = (times >= start_s - SAME_S) & (times < end_s - SAME_S)
        num_bytes = int(rows["num_bytes"][inside].sum())
        return 8 * num_bytes / (self._pixels * num_frames) if num_bytes else None

    def _settle(self) -> None:
        tick, num_bytes = heapq.heappop(self._waiting)
        if tick < self._last_tick:
            self._known = False
            return
        self._last_tick = tick
        self._tape.append(tick, num_bytes)
