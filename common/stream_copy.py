"""Cuts a file without encoding: the packets between two key frames, as they are."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
from av.error import FFmpegError
from av.packet import Packet
from av.video.stream import VideoStream

from common.remote import for_av
from common.streams import video_stream


class NotCopyable(Exception):
    """The span cannot be had exactly without encoding."""


def copy_span(
    source: str | Path, target: Path, *, codec: str, start_tick: int, end_tick: int, num_frames: int
) -> list[float]:
    """Copies the pictures whose timestamps are in `[start_tick, end_tick)` to an MP4.

    Returns the times of the key frames, in seconds from the start. Raises `NotCopyable` for another
    codec, other pictures than 8-bit 4:2:0 with square pixels, no key frame at the start, pictures
    that need others from outside (open groups), or another number of them.

    Args:
        codec: that the file must have, as FFmpeg calls it.
        start_tick, end_tick: in the clock of the video stream that `VideoReader` chooses.
    """
    try:
        with av.open(for_av(source), "r") as reader:
            stream = video_stream(reader)
            if stream is None or not _plain(stream, codec):
                raise NotCopyable("other pictures than asked for")
            packets = list(_between(reader.demux(stream), start_tick, end_tick))
            stamps = [packet.pts for packet in packets if packet.pts is not None]
            if not stamps or not len(stamps) == len(packets) == num_frames:
                raise NotCopyable("no key frames at its ends")
            if not packets[0].pts == min(stamps) == start_tick or max(stamps) >= end_tick:
                raise NotCopyable("pictures that reach across its ends")
            return _write(target, stream, packets, start_tick, end_tick)
    except FFmpegError as error:
        raise NotCopyable(str(error)) from error


def _plain(stream: VideoStream, codec: str) -> bool:
    context = stream.codec_context
    square = (stream.sample_aspect_ratio or 1) in (0, 1)
    same = context.name == codec and context.pix_fmt == "yuv420p" and context.color_range != 2
    return bool(same and square and context.extradata)


def _between(packets: Iterator[Packet], start_tick: int, end_tick: int) -> Iterator[Packet]:
    """Packets in decoding order, from the key frame at the start to the first key frame at or past
    the end. Where pictures reach across either, their number or their times will tell."""
    begun = False
    for packet in packets:
        if packet.pts is None or packet.dts is None:
            continue
        if packet.is_corrupt or (packet.is_discard and begun):
            return
        begun = begun or (packet.is_keyframe and packet.pts == start_tick)
        if begun and packet.is_keyframe and packet.pts >= end_tick:
            return
        if begun:
            yield packet


def _write(
    target: Path, stream: VideoStream, packets: list[Packet], start_tick: int, end_tick: int
) -> list[float]:
    clock = Fraction(stream.time_base or Fraction(1, 90000))
    options = {"movflags": "+faststart", "fflags": "+bitexact"}
    last = max(packets, key=lambda packet: packet.pts or 0)
    with av.open(str(target), "w", format="mp4", options=options) as writer:
        copy = writer.add_stream_from_template(stream)
        copy.time_base = clock
        keyframes_s = []
        for packet in packets:
            assert packet.pts is not None and packet.dts is not None
            if packet is last:
                packet.duration = min(packet.duration or end_tick, end_tick - packet.pts)
            packet.pts -= start_tick
            packet.dts -= start_tick
            if packet.is_keyframe:
                keyframes_s.append(float(packet.pts * clock))
            packet.stream = copy
            writer.mux(packet)
    return keyframes_s
