"""Small videos for tests of `dataloading.video`, and what PyAV alone makes of them."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from av.video.reformatter import Interpolation

from common.picture import EXACT
from dataloading.video import VideoDataset, VideoLoader

SIZE = (64, 48)


def write(
    path: Path,
    codec: str = "libx264",
    *,
    num_frames: int = 70,
    size: tuple[int, int] = SIZE,
    gaps: bool = False,
    options: dict[str, str] | None = None,
) -> Path:
    """Moving noise at 25 frames/s; with `gaps`, every seventh frame is missing."""
    rs = np.random.RandomState(len(path.name))
    noise = rs.randint(0, 255, (size[1] // 8, size[0] // 8 + num_frames, 3), dtype=np.uint8)
    with av.open(str(path), "w") as out:
        stream: Any = out.add_stream(codec, rate=25, options=options or {})
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 25)
        for i in range(num_frames):
            if gaps and i % 7 == 3:
                continue
            view = noise[:, i : i + size[0] // 8].repeat(8, 0).repeat(8, 1)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(view), "rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 25)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def reference(path: Path, color: str = "rgb") -> tuple[np.ndarray, np.ndarray]:
    """All frames `uint8 [n, H, W, 3]` and their times, by PyAV alone."""
    frames, times_s = [], []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        for frame in container.decode(stream):
            same: Any = dict(interpolation=Interpolation.BILINEAR | EXACT, dst_color_range="JPEG")
            if color == "rgb":
                frames.append(frame.reformat(format="rgb24", **same).to_ndarray())
            else:
                planes = frame.reformat(format="yuv444p", **same)
                frames.append(
                    np.stack(
                        [
                            np.asarray(p).reshape(frame.height, -1)[:, : frame.width]
                            for p in planes.planes
                        ],
                        -1,
                    )
                )
            assert frame.pts is not None and frame.time_base is not None
            times_s.append(float((frame.pts - (stream.start_time or 0)) * frame.time_base))
    order = np.argsort(times_s)
    return np.stack(frames)[order], np.array(times_s)[order]


FILES: dict[str, dict[str, Any]] = {
    "bframes.mp4": dict(options={"g": "24", "bf": "3", "refs": "3"}),
    "pyramid.mkv": dict(options={"g": "30", "bf": "8", "x264-params": "b-pyramid=normal"}),
    "open.mp4": dict(options={"x264-params": "open-gop=1:keyint=20:bframes=3:scenecut=0"}),
    "one_gop.mp4": dict(options={"g": "500", "bf": "2"}),
    "gaps.mp4": dict(gaps=True, options={"g": "12", "bf": "2"}),
    "hevc.mp4": dict(codec="libx265", options={"x265-params": "keyint=20:log-level=none"}),
    "vp9.webm": dict(codec="libvpx-vp9", options={"g": "20", "deadline": "realtime"}),
    "mpeg4.avi": dict(codec="mpeg4", options={"g": "12", "bf": "0"}),
    "stream.ts": dict(options={"g": "12", "bf": "2"}),
}


def run(loader: VideoLoader, epochs: int = 1) -> list[tuple[list[int], torch.Tensor]]:
    return [(b.indices, b.frames) for _ in range(epochs) for b in loader]


def same(one: list[tuple[list[int], torch.Tensor]], other: list) -> bool:
    return [i for i, _ in one] == [i for i, _ in other] and all(
        torch.equal(a, b) for (_, a), (_, b) in zip(one, other, strict=True)
    )


def dataset(files: list[Path], **changes: Any) -> VideoDataset:
    values: dict[str, Any] = dict(sequence_length=3, every=4, crop=(32, 32), flip=0.5, seed=1)
    return VideoDataset(files, **{**values, **changes})
