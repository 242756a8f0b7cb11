"""The encoder under `common.media`: H.264 in MP4, equal input to equal bytes."""

from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self

import av
from av.video.frame import VideoFrame
from av.video.stream import VideoStream


class VideoWriter:
    """H.264 in MP4 with the index in front. Timestamps are written as given (VFR stays VFR).

    Args:
        rate: nominal frames per second, for rate control and the header.
        time_base: clock of the timestamps given to `write`.
        gop: frames between key frames; None is the encoder's choice.
    """

    def __init__(
        self,
        path: Path,
        *,
        width: int,
        height: int,
        rate: Fraction,
        time_base: Fraction,
        crf: int,
        preset: str,
        num_threads: int,
        gop: int | None = None,
    ) -> None:
        self._container = av.open(
            str(path), "w", format="mp4", options={"movflags": "+faststart", "fflags": "+bitexact"}
        )
        # x264's AVX-512 macroblock tree reads memory it never wrote, and equal input then gives
        # unequal bytes from run to run.
        params = "mbtree=0"
        if gop is not None:
            # Key frames at fixed distance, so that a reader can predict the cost of a seek.
            params += f":keyint={gop}:min-keyint={gop}:scenecut=0:open-gop=0"
        options = {"crf": str(crf), "preset": preset, "x264-params": params}
        stream = self._container.add_stream("libx264", rate=rate, options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = time_base
        stream.time_base = time_base
        stream.codec_context.thread_count = num_threads
        self._stream = stream
        self._time_base = time_base
        self._num_written = 0
        self.keyframes: list[int] = []
        """Timestamps of the key frames, in the clock given; complete after the context."""

    def __enter__(self) -> Self:
        return self

    def write(self, picture: VideoFrame, *, pts: int, duration: int) -> None:
        """Encodes one yuv420p picture, shown from `pts` for `duration` ticks of the clock."""
        if not self._num_written:
            context = self._stream.codec_context
            context.colorspace, context.color_range = picture.colorspace, picture.color_range
            context.color_primaries, context.color_trc = picture.color_primaries, picture.color_trc
        picture.pts, picture.time_base, picture.duration = pts, self._time_base, duration
        picture.pict_type = 0  # else the encoder would copy the source's frame types
        self._mux(picture)
        self._num_written += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._mux(None)
        finally:
            self._container.close()

    def _mux(self, picture: VideoFrame | None) -> None:
        for packet in self._stream.encode(picture):
            if packet.is_keyframe and packet.pts is not None:
                self.keyframes.append(packet.pts)
            self._container.mux(packet)
