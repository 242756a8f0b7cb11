"""One open video file: its header, its good pictures with their times, and what was lost.

Every time is in seconds from presentation timestamps, relative to the start of the video stream;
nothing is computed from a frame's index. Pictures come out as displayed: turned by the display
matrix, with square pixels. Bad files raise `MediaError` by reason; damaged ones are read past the
damage, and `VideoReader.health` says what was lost.
"""

import io
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import av
from av.container import InputContainer
from av.error import FFmpegError
from av.format import Flags
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from common.coded_sizes import CodedSizes
from common.errors import MediaError
from common.remote import for_av, is_url, open_bytes, remote_state
from common.renderer import Renderer
from common.streams import notes_of, video_stream
from common.tape import Spill
from common.timeline import SAME_S, Clock, Health, RawFrame, Timeline, is_joint
from common.tone_map import HDR

# PyAV keeps FFmpeg silent as long as nobody sets a log level; with one, a decoder thread that logs
# waits for the interpreter while the interpreter waits for the decoder thread.

_PREFIX_BYTES = 4096
_CONTAINER_ERRORS_MAX = 1000
"""A demuxer that fails this often in one file is not moving forward any more."""
_MADE_TO_BE_JOINED = Flags.ts_discont.value


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    """What a file's header says of its video stream."""

    path: str
    width: int
    """Pixels as displayed: after rotation, with square pixels."""
    height: int
    fps: float
    """Average over the file; 0 where the header does not say."""
    duration_s: float
    """Of the video stream where the header says it, else of the container; 0 if unknown."""
    start_s: float
    """Presentation time of the first frame in the file's own clock; all other times start there."""
    codec: str
    pix_fmt: str
    rotation_deg: int
    """Counter-clockwise turn from the stored to the displayed picture: 0, 90, 180 or 270."""
    num_frames: int
    """As the header counts them; 0 if it does not."""
    num_bytes: int
    has_audio: bool
    hdr: str
    """`PQ` or `HLG`; empty where the range is standard."""
    notes: str
    """Video streams of the file that are not used, and high dynamic range; often empty."""


class VideoReader(Renderer):
    """One open file and its video stream, chosen by `common.streams.video_stream`.

    Args:
        num_threads: of the decoder; 0 takes as many as there are cores.
        tone_map: as in `Renderer`.

    Raises `MediaError` on opening: `missing`, `unreadable`, `empty`, `not_a_video`, `no_moov`,
    `no_video_stream`, `decode_failed` (no codec, or not one picture decodes).
    """

    def __init__(
        self, source: str | Path | bytes, *, num_threads: int = 1, tone_map: bool = True
    ) -> None:
        super().__init__(tone_map=tone_map)
        self.name = "<bytes>" if isinstance(source, bytes) else str(source)
        self.health = Health()
        self._source = source
        self._num_threads = num_threads
        self._sizes: CodedSizes | None = None
        self._container = self._open()
        try:
            self._stream = self._video_stream()
            self._origin_pts = self._stream.start_time
            self.info = self._probe()
        except BaseException:
            self._container.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._container.close()

    @property
    def time_base(self) -> Fraction:
        """The stream's clock; the timestamps of the pictures count in it."""
        return Fraction(self._stream.time_base or Fraction(1, 90000))

    @property
    def origin_pts(self) -> int:
        """The timestamp, in `time_base`, that is time 0."""
        return self._origin_pts or 0

    def coded_sizes(self, spill: Spill) -> CodedSizes:
        """Filled by the next `frames`."""
        self._sizes = CodedSizes(
            origin=self.origin_pts,
            tick_s=float(self.time_base),
            pixels=self._stream.codec_context.width * self._stream.codec_context.height,
            decode_times=self._decode_times,
            spill=spill,
        )
        return self._sizes

    def frames(
        self, *, start_s: float = 0.0, end_s: float | None = None, from_shown: bool = False
    ) -> Iterator[RawFrame]:
        """The good frames with `start_s <= pts_s < end_s`, decoded from the key frame before.

        Where a key frame is none in truth (intra refresh), pictures after a seek may differ from
        those of a read from the start on.

        Args:
            from_shown: begin with the frame that is on screen at `start_s`, which may have begun
                before it.

        Frames between an error and the next clean key frame are left out and recorded in `health`.
        Each call starts anew. The pictures are valid until the next one is asked for.
        """
        self.health = Health()
        self._reopen()
        if start_s > 0 and not self._seek(start_s):
            self._reopen()
        waiting: RawFrame | None = None
        for frame in Timeline(self._clock(), self.health).frames(self._pictures()):
            if end_s is not None and frame.pts_s >= end_s - SAME_S:
                break
            if frame.pts_s >= start_s - SAME_S:
                if waiting is not None:
                    yield waiting
                    waiting = None
                yield frame
            elif from_shown:
                waiting = frame
        if waiting is not None:
            yield waiting

    def _open(self) -> InputContainer:
        source = self._source
        prefix = b""
        try:
            if isinstance(source, bytes):
                prefix = source[:_PREFIX_BYTES]
            else:
                with open_bytes(source) as file:
                    prefix = file.read(_PREFIX_BYTES)
        except FileNotFoundError:
            raise MediaError("missing", f"{self.name} does not exist") from None
        except OSError as error:
            raise MediaError("unreadable", f"{self.name}: {error.strerror or error}") from None
        if not prefix:
            raise MediaError("empty", f"{self.name} has no bytes")
        try:
            return av.open(
                io.BytesIO(source) if isinstance(source, bytes) else for_av(source),
                "r",
                metadata_errors="replace",
            )
        except FFmpegError as error:
            if prefix[4:8] == b"ftyp":
                raise MediaError(
                    "no_moov",
                    f"{self.name} is an MP4 without a readable moov box: its writer was cut off",
                ) from None
            raise MediaError(
                "not_a_video", f"{self.name} is of no known container: {error.strerror}"
            ) from None

    def _video_stream(self) -> VideoStream:
        stream = video_stream(self._container)
        if stream is None:
            kinds = ", ".join(sorted({s.type for s in self._container.streams})) or "no"
            raise MediaError("no_video_stream", f"{self.name} holds {kinds} streams only")
        if stream.codec_context is None:
            raise MediaError("decode_failed", f"{self.name}: no decoder for its video codec")
        stream.thread_type = "AUTO"
        stream.codec_context.thread_count = self._num_threads
        self._pixel_ratio = Fraction(stream.sample_aspect_ratio or 1)
        return stream

    def _reopen(self) -> None:
        self._container.close()
        self._container = self._open()
        self._stream = self._video_stream()

    def _probe(self) -> VideoInfo:
        stream = self._stream
        first = next((picture for picture, _ in self._pictures() if picture is not None), None)
        if first is None:
            raise MediaError("decode_failed", f"{self.name}: not one picture decodes")
        # Without presentation times, the start in the header is that of decoding.
        if self._origin_pts is None or self._decode_times:
            self._origin_pts = self._stamp(first)
        num_bytes = len(self._source) if isinstance(self._source, bytes) else _size(self.name)
        width, height = self.display_size(first)
        rate = stream.average_rate or stream.guessed_rate or stream.base_rate
        self._frame_s = float(1 / rate) if rate else 0.04
        return VideoInfo(
            path=self.name,
            width=width,
            height=height,
            fps=float(rate or 0),
            duration_s=self._duration_s(),
            start_s=float(self.origin_pts * self.time_base),
            codec=stream.codec_context.name,
            pix_fmt=first.format.name,
            rotation_deg=round(first.rotation) % 360,
            num_frames=stream.frames,
            num_bytes=num_bytes,
            has_audio=bool(self._container.streams.audio),
            hdr=HDR.get(first.color_trc, ""),
            notes=notes_of(self._container, stream, first),
        )

    def _duration_s(self) -> float:
        stream = self._stream
        self._own_duration = True
        if stream.duration:
            return float(stream.duration * self.time_base)
        tag = stream.metadata.get("DURATION", "")  # Matroska, as 00:00:22.280000000
        parts = tag.split("\0")[0].split(":")
        if len(parts) == 3 and all(part.replace(".", "", 1).isdigit() for part in parts):
            end_s = int(parts[0]) * 3600 + int(parts[1]) * 60 + float(parts[2])
            return max(0.0, end_s - float(self.origin_pts * self.time_base))
        self._own_duration = False  # sound may be longer than the pictures
        return (self._container.duration or 0) / av.time_base

    @property
    def _decode_times(self) -> bool:
        """AVI has no presentation times. What FFmpeg makes up for it counts in order of decoding,
        so with B-frames the pictures would jump to and fro."""
        return self._container.format.name == "avi"

    @property
    def _joins(self) -> bool:
        return bool(self._container.format.flags & _MADE_TO_BE_JOINED)

    def _stamp(self, picture: VideoFrame) -> int | None:
        """A picture's time of presentation, in ticks.

        In AVI that is the time of the packet which brought the picture out of the decoder: later
        than its own by the decoder's delay, which is the same for all. None is 'right after the
        one before'; the last pictures come out without a packet.
        """
        if self._decode_times or picture.pts is None:
            return picture.dts
        return picture.pts

    def _clock(self) -> Clock:
        return Clock(
            stamp=self._stamp,
            origin=self.origin_pts,
            frame_s=self._frame_s,
            declared_s=self.info.duration_s,
            of_pictures=self._own_duration,
            joins=self._joins,
        )

    def _seek(self, start_s: float) -> bool:
        """Goes to a key frame at or before `start_s`; False where the index cannot be trusted."""
        if self._joins:
            # Their timestamps may begin anew anywhere, and FFmpeg's search for one of them loses
            # pictures after some key frames.
            return False
        target = self.origin_pts + round(start_s / float(self.time_base))
        try:
            self._container.seek(target, stream=self._stream, backward=True)
            first = next((p for p, _ in self._pictures() if p is not None), None)
            if first is None or first.is_corrupt:
                return False
            stamp = self._stamp(first)
            if stamp is None or stamp > target:
                return False
            # The peek consumed the picture, so the decoder is put there once more.
            self._container.seek(target, stream=self._stream, backward=True)
        except FFmpegError:
            return False
        return True

    def _pictures(self) -> Iterator[tuple[VideoFrame | None, bool]]:
        """Decoded pictures, and (None, True) for each error that decoding went past."""
        for packet, after in _with_following(self._packets()):
            if packet is None or (packet.is_corrupt and not self._ends_recording(packet, *after)):
                yield None, True
            if packet is None:
                continue
            try:
                for picture in self._stream.decode(packet):
                    yield picture, picture.is_corrupt
            except FFmpegError:
                yield None, True

    def _packets(self) -> Iterator[Packet | None]:
        """The stream's packets, the empty one that ends it too; None for each error between."""
        packets = self._container.demux(self._stream)
        failures = 0
        while failures < _CONTAINER_ERRORS_MAX:
            try:
                packet = next(packets)
                if self._sizes is not None:
                    self._sizes.note(packet)
                yield packet
            except StopIteration:
                return
            except FFmpegError:
                failures += 1
                packets = self._container.demux(self._stream)
                yield None

    def _ends_recording(self, *packets: Packet | None) -> bool:
        """Whether another recording begins among the packets after the first.

        MPEG-TS then counts as if something were missing, and FFmpeg calls one of the last packets
        before the joint corrupt for it.
        """
        for packet, after in pairwise(packets):
            if packet is None or after is None or packet.dts is None or after.dts is None:
                return False
            step_s = float((after.dts - packet.dts) * self.time_base)
            if after.is_keyframe and is_joint(step_s, self._joins):
                return True
        return False


def _with_following(
    packets: Iterator[Packet | None], count: int = 2
) -> Iterator[tuple[Packet | None, list[Packet | None]]]:
    """Each packet with those that come next; fewer at the end."""
    window: deque[Packet | None] = deque()
    for packet in packets:
        window.append(packet)
        if len(window) > count:
            yield window.popleft(), list(window)
    while window:
        yield window.popleft(), list(window)


def _size(name: str) -> int:
    return remote_state(name).num_bytes if is_url(name) else Path(name).stat().st_size
