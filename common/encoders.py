"""The video encoders that FFmpeg offers, and their options: quality by CRF, key frames at a fixed
distance, and bytes that depend on nothing but the input and the parameters."""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from av.codec.codec import UnknownCodecError
from av.error import FFmpegError
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame

from common.errors import ConfigError

_X26X_PRESETS = (
    "ultrafast",
    "superfast",
    "veryfast",
    "faster",
    "fast",
    "medium",
    "slow",
    "slower",
    "veryslow",
)


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """One encoder, and what its settings can be."""

    name: str
    """As FFmpeg calls it."""
    presets: tuple[str, ...]
    preset: str
    """The one to take where none is asked for."""
    crf_max: int
    tag: str | None = None
    """Name of the codec in an MP4, where players need another than FFmpeg's."""
    hardware: bool = False


_NVENC_PRESETS = tuple(f"p{number}" for number in range(1, 8))


def _nvenc(name: str, tag: str | None = None) -> Encoder:
    return Encoder(
        name=name, presets=_NVENC_PRESETS, preset="p4", crf_max=51, tag=tag, hardware=True
    )


ENCODERS = {
    ("h264", "software"): Encoder(
        name="libx264", presets=_X26X_PRESETS, preset="veryfast", crf_max=51
    ),
    ("hevc", "software"): Encoder(
        name="libx265", presets=_X26X_PRESETS, preset="veryfast", crf_max=51, tag="hvc1"
    ),
    ("av1", "software"): Encoder(
        name="libsvtav1", presets=tuple(str(n) for n in range(14)), preset="10", crf_max=63
    ),
    ("h264", "nvenc"): _nvenc("h264_nvenc"),
    ("hevc", "nvenc"): _nvenc("hevc_nvenc", tag="hvc1"),
    ("av1", "nvenc"): _nvenc("av1_nvenc"),
}
"""By codec and kind."""


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How pictures are encoded."""

    encoder: Encoder = ENCODERS["h264", "software"]
    crf: int = 18
    """Quality; lower is better. NVENC takes it as `cq`."""
    preset: str = "veryfast"
    num_threads: int = 1
    gop: int | None = None
    """Frames between key frames; None is the encoder's choice."""

    def options(self) -> dict[str, str]:
        """For FFmpeg."""
        by_name = {
            "libx264": self._libx264,
            "libx265": self._libx265,
            "libsvtav1": self._libsvtav1,
        }
        return {"preset": self.preset, **by_name.get(self.encoder.name, self._nvenc)()}

    def _libx264(self) -> dict[str, str]:
        # x264's AVX-512 macroblock tree reads memory it never wrote, and equal input then gives
        # unequal bytes from run to run.
        params = "mbtree=0"
        if self.gop is not None:
            # Key frames at fixed distance, so that a reader can predict the cost of a seek.
            params += f":keyint={self.gop}:min-keyint={self.gop}:scenecut=0:open-gop=0"
        return {"crf": str(self.crf), "x264-params": params}

    def _libx265(self) -> dict[str, str]:
        # By itself it takes as many threads as there are cores, and these change the bytes.
        params = (
            f"log-level=none:pools={self.num_threads}:frame-threads={min(self.num_threads, 16)}"
        )
        if self.gop is not None:
            params += f":keyint={self.gop}:min-keyint={self.gop}:scenecut=0:open-gop=0"
        return {"crf": str(self.crf), "x265-params": params}

    def _libsvtav1(self) -> dict[str, str]:
        params = f"lp={self.num_threads}"
        if self.gop is not None:
            params += f":keyint={self.gop}:scd=0:irefresh-type=2"
        return {"crf": str(self.crf), "svtav1-params": params}

    def _nvenc(self) -> dict[str, str]:
        options = {"tune": "hq", "rc": "vbr", "cq": str(self.crf), "b": "0", "spatial-aq": "1"}
        if self.gop is not None:
            options |= {
                "g": str(self.gop),
                "no-scenecut": "1",
                "strict_gop": "1",
                "forced-idr": "1",
            }
        return options


@contextmanager
def tamed(codec: str) -> Iterator[None]:
    """Around an encoder's opening, which is at its first picture; `codec` as FFmpeg calls it.

    SVT-AV1 writes a page of its settings to stderr for each clip, past all of FFmpeg's log levels;
    it takes its own from the environment, where one that a user has set stays. Under root it gives
    its threads, and the one that called it, real-time priority: all that the process starts later
    would inherit it and starve the machine, so it is taken back.
    """
    if codec != "libsvtav1":
        yield
        return
    os.environ.setdefault("SVT_LOG", "1")  # errors
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        for thread in (int(entry.name) for entry in Path("/proc/self/task").iterdir()):
            with suppress(ProcessLookupError):  # It may just have ended.
                if os.sched_getscheduler(thread) != policy:
                    os.sched_setscheduler(thread, policy, parameters)


@functools.cache
def check_encoder(encoder: Encoder) -> None:
    """Encodes one picture, since an encoder that FFmpeg has may lack its hardware.

    Raises `ConfigError` that says what is missing.
    """
    try:
        context = VideoCodecContext.create(encoder.name, "w")
        assert isinstance(context, VideoCodecContext)
        context.width, context.height, context.pix_fmt = 256, 256, "yuv420p"
        context.time_base, context.framerate = Fraction(1, 25), Fraction(25)
        context.options = Encoding(encoder=encoder, crf=30, preset=encoder.preset).options()
        picture = VideoFrame.from_ndarray(np.full((384, 256), 128, np.uint8), "yuv420p")
        picture.pts = 0
        with tamed(encoder.name):
            context.encode(picture)
        context.encode(None)
    except (UnknownCodecError, FFmpegError, ValueError) as error:
        nvenc = "an NVIDIA GPU with NVENC (A100 and H100 have none) and its driver"
        need = nvenc if encoder.hardware else "an FFmpeg with it"
        raise ConfigError(
            f"the encoder {encoder.name} does not work here ({error}): it needs {need}; "
            "transcode.encoder=software and transcode.codec=h264 work everywhere"
        ) from error
