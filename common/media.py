"""Video files through PyAV: probe, decode, sample, encode.

Times are seconds of presentation; see `VideoReader`, which also says how bad files are met.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation

from common.coded_sizes import CodedSizes
from common.encoders import Encoding
from common.errors import MediaError
from common.picture import EXACT
from common.storage import atomic_path
from common.timeline import Health, RawFrame
from common.video_reader import VideoInfo, VideoReader
from common.video_writer import VideoWriter

__all__ = [
    "CodedSizes",
    "Frame",
    "Health",
    "RawFrame",
    "VideoInfo",
    "VideoReader",
    "VideoWriter",
    "probe",
    "read_at",
    "read_frames",
    "write_video",
]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One picture. `rgb` is `uint8 [H, W, 3]`; it is shown from `pts_s` for `duration_s`."""

    pts_s: float
    duration_s: float
    rgb: np.ndarray


def probe(path: str | Path) -> VideoInfo:
    """Reads the header and the first picture. Raises `MediaError` by reason (see `VideoReader`)."""
    with VideoReader(path) as reader:
        return reader.info


def read_frames(
    source: str | Path | bytes,
    *,
    start_s: float = 0.0,
    end_s: float | None = None,
    size: tuple[int, int] | None = None,
    num_threads: int = 1,
) -> Iterator[Frame]:
    """The frames with `start_s <= pts_s < end_s`, in order of presentation.

    Args:
        source: a path, or the bytes of a whole file.
        size: exact (width, height) of the output; None is the displayed size.
        num_threads: of the decoder; 0 takes as many as there are cores.
    """
    with VideoReader(source, num_threads=num_threads) as reader:
        for raw in reader.frames(start_s=start_s, end_s=end_s):
            rgb = reader.rgb(raw.picture, size=size)
            yield Frame(pts_s=raw.pts_s, duration_s=raw.duration_s, rgb=rgb)


def read_at(
    source: str | Path | bytes,
    times_s: Sequence[float],
    *,
    size: tuple[int, int] | None,
    crop: tuple[int, int, int, int] | None = None,
    num_threads: int = 1,
) -> np.ndarray:
    """The pictures shown at some times, `uint8 [T, H, W, 3]`, by one forward decode.

    A picture counts as shown from half a frame before its timestamp (half of the average frame
    time), so that times that went through rounding still find their own frame. Times after the
    end give the last picture, times before the start the first.

    Args:
        times_s: in any order.
        size: (width, height) to which the whole picture is scaled; None is the displayed size.
        crop: (left, top, width, height) cut out of the scaled picture.
    Raises:
        MediaError: where the file has no usable frame for a time.
    """
    if not times_s:
        raise ValueError("times_s is empty: ask for at least one time")
    order = sorted(range(len(times_s)), key=lambda i: times_s[i])
    pictures: list[np.ndarray | None] = [None] * len(order)
    with VideoReader(source, num_threads=num_threads) as reader:
        tolerance_s = 0.5 / reader.info.fps if reader.info.fps > 0 else 0.0

        def render(raw: RawFrame) -> np.ndarray:
            rgb = reader.rgb(raw.picture, size=size)
            if crop is None:
                return rgb
            left, top, width, height = crop
            if left < 0 or top < 0 or left + width > rgb.shape[1] or top + height > rgb.shape[0]:
                raise ValueError(f"crop {crop} leaves the picture {rgb.shape[1]}x{rgb.shape[0]}")
            return rgb[top : top + height, left : left + width]

        done = 0
        shown: RawFrame | None = None
        for raw in reader.frames(start_s=max(0.0, times_s[order[0]]), from_shown=True):
            rendered = None
            while shown and done < len(order) and raw.pts_s > times_s[order[done]] + tolerance_s:
                rendered = render(shown) if rendered is None else rendered
                pictures[order[done]] = rendered
                done += 1
            if done == len(order):
                break
            shown = raw
        if shown is None:
            raise MediaError("decode_failed", f"{reader.name} has no frame at {times_s[order[0]]}s")
        if done < len(order):
            rendered = render(shown)
            for index in order[done:]:
                pictures[index] = rendered
    return np.stack([picture for picture in pictures if picture is not None])


def write_video(
    path: str | Path,
    frames: np.ndarray,
    *,
    fps: float,
    crf: int = 18,
    preset: str = "medium",
    num_threads: int = 1,
) -> None:
    """Writes `uint8 [T, H, W, 3]` as H.264 in MP4 (yuv420p, BT.709), whole or not at all.

    Equal pictures and parameters give equal bytes. An odd last row or column is left out, because
    4:2:0 needs even sizes.
    """
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or not len(frames):
        raise ValueError(f"frames must be uint8 [T, H, W, 3], got {frames.dtype} {frames.shape}")
    height, width = frames.shape[1] // 2 * 2, frames.shape[2] // 2 * 2
    rate = Fraction(fps).limit_denominator(1001)
    with (
        atomic_path(Path(path)) as temporary,
        VideoWriter(
            temporary,
            width=width,
            height=height,
            rate=rate,
            time_base=1 / rate,
            encoding=Encoding(crf=crf, preset=preset, num_threads=num_threads),
        ) as writer,
    ):
        for index, rgb in enumerate(frames):
            picture = VideoFrame.from_ndarray(np.ascontiguousarray(rgb[:height, :width]), "rgb24")
            writer.write(
                picture.reformat(
                    format="yuv420p",
                    dst_colorspace="ITU709",
                    dst_color_range="MPEG",
                    interpolation=Interpolation.AREA | EXACT,
                    threads=1,
                ),
                pts=index,
                duration=1,
            )
