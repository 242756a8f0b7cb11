"""Sound of a span of a file, exact to the sample."""

from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.error import FFmpegError

from common.errors import MediaError
from common.remote import for_av

AAC_RATES_HZ = (
    8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000,
)  # fmt: skip
_LEAD_S = 1.0
"""Decoded before the span: the first packets after a seek lack what came before them."""


@dataclass(frozen=True, kw_only=True)
class Sound:
    """`samples` is `float32 [channels, n]`, from -1 to 1."""

    samples: np.ndarray
    rate_hz: int
    layout: str


def read_sound(path: str | Path, start_s: float, end_s: float) -> Sound | None:
    """The sound of the first audio stream between two times of the file's own clock.

    The sample at `start_s` is the nearest that there is; what is missing, before, between or after
    packets, is silence. Rates that AAC cannot hold become 48 kHz, and more than two channels
    stereo. None where the file has no sound. Raises `MediaError` where it cannot be decoded.
    """
    try:
        with av.open(for_av(path), "r") as container:
            if not container.streams.audio:
                return None
            stream = container.streams.audio[0]
            # Containers may leave the layout open; the number of channels is always known.
            layout = "mono" if stream.channels == 1 else "stereo"
            rate_hz = stream.rate if stream.rate in AAC_RATES_HZ else 48000
            resampler = AudioResampler(format="fltp", layout=layout, rate=rate_hz)
            num_channels = 1 if layout == "mono" else 2
            samples = np.zeros((num_channels, round((end_s - start_s) * rate_hz)), np.float32)
            first = round(start_s * rate_hz)
            if start_s > _LEAD_S:
                container.seek(round((start_s - _LEAD_S) * av.time_base))
            offset: int | None = None
            for frame in container.decode(stream):
                if frame.time is None:
                    continue
                if frame.time > end_s:
                    break
                offset = _place(samples, resampler.resample(frame), first, rate_hz, offset)
            _place(samples, resampler.resample(None), first, rate_hz, offset)
    except FFmpegError as error:
        raise MediaError("audio_failed", f"{path}: its sound cannot be decoded: {error}") from error
    return Sound(samples=samples, rate_hz=rate_hz, layout=layout)


def _place(
    samples: np.ndarray, frames: list[AudioFrame], first: int, rate_hz: int, after: int | None
) -> int | None:
    """Puts frames where their times say; returns the place after the last.

    Timestamps of a coarse clock wander by parts of a sample or a few, which is no gap: frames that
    almost follow each other do follow each other.
    """
    for frame in frames:
        part = frame.to_ndarray()
        at = after
        if frame.pts is not None and frame.time_base is not None:
            stated = round(frame.pts * frame.time_base * rate_hz) - first
            if at is None or abs(stated - at) > rate_hz // 500:
                at = stated
        if at is None:
            continue
        low, high = max(at, 0), min(at + part.shape[1], samples.shape[1])
        if high > low:
            samples[:, low:high] = part[:, low - at : high - at]
        after = at + part.shape[1]
    return after
