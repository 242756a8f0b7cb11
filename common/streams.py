"""Which of a file's video streams is the video, and what is to be said of it."""

from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from common.tone_map import HDR

_DEFAULT = 0x0001
"""AV_DISPOSITION_DEFAULT"""
_ATTACHED_PICTURE = 0x0400
"""AV_DISPOSITION_ATTACHED_PIC"""


def video_stream(container: InputContainer) -> VideoStream | None:
    """The stream that the file flags as default; of several, or where none is, the largest
    picture, then the first. Streams that no decoder is there for come last, and cover pictures,
    which are video by type only, never."""
    streams = [s for s in container.streams.video if not int(s.disposition) & _ATTACHED_PICTURE]
    return max(streams, key=_rank, default=None)


def notes_of(container: InputContainer, chosen: VideoStream, first: VideoFrame) -> str:
    """What the scores and clips do not show: high dynamic range, by its first picture, and video
    streams that are not used. Empty where there is nothing to say."""
    notes = [_other_streams(container, chosen)]
    if first.color_trc in HDR:
        notes.append(f"hdr: {HDR[first.color_trc]}")
    return "; ".join(filter(None, notes))


def _other_streams(container: InputContainer, chosen: VideoStream) -> str:
    others = [_told(s) for s in container.streams.video if s.index != chosen.index]
    return f"video streams not used: {', '.join(others)}" if others else ""


def _rank(stream: VideoStream) -> tuple[bool, bool, int, int]:
    context = stream.codec_context
    known = context is not None
    pixels = context.width * context.height if known else 0
    return known, bool(int(stream.disposition) & _DEFAULT), pixels, -stream.index


def _told(stream: VideoStream) -> str:
    context = stream.codec_context
    if int(stream.disposition) & _ATTACHED_PICTURE:
        return f"{stream.index} (cover picture)"
    if context is None:
        return f"{stream.index} (no decoder)"
    return f"{stream.index} ({context.name} {context.width}x{context.height})"
