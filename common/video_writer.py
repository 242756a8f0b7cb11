"""The encoder under `common.media`: pictures, and perhaps sound, in MP4; equal input to equal
bytes."""

from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from common.audio import Sound
from common.encoders import Encoding, tamed

_AAC_FRAME = 1024
_AAC_BITS_PER_S = 64_000
"""For each channel."""


class VideoWriter:
    """MP4 with the index in front. Timestamps are written as given (VFR stays VFR).

    Args:
        rate: nominal frames per second, for rate control and the header.
        time_base: clock of the timestamps given to `write`.
        sound: written as AAC, from the first picture on; exact to the sample for players that
            follow edit lists.
    """

    def __init__(
        self,
        path: Path,
        *,
        width: int,
        height: int,
        rate: Fraction,
        time_base: Fraction,
        encoding: Encoding,
        sound: Sound | None = None,
    ) -> None:
        self._container = av.open(
            str(path), "w", format="mp4", options={"movflags": "+faststart", "fflags": "+bitexact"}
        )
        encoder = encoding.encoder
        stream = self._container.add_stream(encoder.name, rate=rate, options=encoding.options())
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = time_base
        stream.time_base = time_base
        stream.codec_context.thread_count = encoding.num_threads
        if encoder.tag is not None:
            stream.codec_context.codec_tag = encoder.tag
        self._stream = stream
        self._time_base = time_base
        self._sound = sound
        self._audio = None if sound is None else self._add_audio(sound)
        self._num_written = 0
        self._durations: dict[int, int] = {}
        """Of pictures that the encoder still holds, by their timestamps."""
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
        self._durations[pts] = duration
        if self._num_written:
            self._mux(picture)
        else:
            with tamed(self._stream.codec_context.name):
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
                self._mux_sound()
        finally:
            self._container.close()

    def _mux(self, picture: VideoFrame | None) -> None:
        for packet in self._stream.encode(picture):
            assert packet.pts is not None
            # Encoders tell nominal durations; the last one says where the file ends.
            packet.duration = self._durations.pop(packet.pts)
            if packet.is_keyframe:
                self.keyframes.append(packet.pts)
            self._container.mux(packet)

    def _add_audio(self, sound: Sound) -> AudioStream:
        stream = self._container.add_stream("aac", rate=sound.rate_hz, layout=sound.layout)
        assert isinstance(stream, AudioStream)
        stream.codec_context.bit_rate = _AAC_BITS_PER_S * len(sound.samples)
        return stream

    def _mux_sound(self) -> None:
        if self._sound is None or self._audio is None:
            return
        sound = self._sound
        for at in range(0, sound.samples.shape[1], _AAC_FRAME):
            part = np.ascontiguousarray(sound.samples[:, at : at + _AAC_FRAME])
            frame = AudioFrame.from_ndarray(part, format="fltp", layout=sound.layout)
            frame.sample_rate, frame.pts = sound.rate_hz, at
            frame.time_base = Fraction(1, sound.rate_hz)
            self._container.mux(self._audio.encode(frame))
        self._container.mux(self._audio.encode(None))
