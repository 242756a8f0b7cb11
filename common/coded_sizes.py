"""How many bytes the pictures of a stream take, by their times."""

from array import array

import numpy as np
from av.packet import Packet

from common.timeline import SAME_S


class CodedSizes:
    """Filled while a stream is read.

    Args:
        origin: the tick that is time 0.
        tick_s: how long a tick lasts.
        pixels: of one picture as it is coded.
        decode_times: whether the container knows times of decoding only.
    """

    def __init__(self, *, origin: int, tick_s: float, pixels: int, decode_times: bool) -> None:
        self._origin = origin
        self._tick_s = tick_s
        self._pixels = pixels
        self._decode_times = decode_times
        self._ticks = array("q")
        self._sizes = array("q")
        self._last_dts: int | None = None
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
        self._ticks.append(tick)
        self._sizes.append(packet.size)

    def bits_per_pixel(self, start_s: float, end_s: float, num_frames: int) -> float | None:
        """Coded bits over coded pixels of the pictures in a span; None where that is not known."""
        if not self._known or not num_frames or not self._pixels:
            return None
        times = (np.frombuffer(self._ticks, np.int64) - self._origin) * self._tick_s
        inside = (times >= start_s - SAME_S) & (times < end_s - SAME_S)
        num_bytes = int(np.frombuffer(self._sizes, np.int64)[inside].sum())
        return 8 * num_bytes / (self._pixels * num_frames) if num_bytes else None
