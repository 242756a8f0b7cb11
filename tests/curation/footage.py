"""Videos made for tests: textured shots that move, cut at known times."""

import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from common.encoders import tamed

SIZE = (160, 96)
FPS = 20


def shot(
    seed: int, num_frames: int, *, size: tuple[int, int] = SIZE, step_px: float = 2.0
) -> np.ndarray:
    """`uint8 [T, H, W, 3]`: one picture of blobs sliding sideways under a fixed window."""
    width, height = size
    random = np.random.default_rng(seed)
    span = width + int(num_frames * step_px) + 1
    base = random.integers(0, 256, 3)
    coarse = random.integers(0, 256, (height // 8 + 2, span // 8 + 2, 3)).astype(np.float32)
    picture = cv2.resize(coarse, (span, height), interpolation=cv2.INTER_CUBIC)
    picture = np.clip(0.5 * picture + 0.5 * base, 0, 255).astype(np.uint8)
    picture = picture + random.integers(0, 12, picture.shape).astype(np.uint8)
    offsets = [int(i * step_px) for i in range(num_frames)]
    return np.stack([picture[:, at : at + width] for at in offsets])


def write(
    path: Path,
    frames: np.ndarray,
    *,
    fps: int = FPS,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    ticks: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    rotation_deg: int = 0,
    pixel_aspect: Fraction | None = None,
    options: dict[str, str] | None = None,
) -> Path:
    """Encodes frames with everything that a foreign file may have.

    Args:
        ticks: timestamps in `time_base`; by default frame numbers.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = frames.shape[1:3]
    with av.open(str(path), "w") as container, tamed(codec):
        stream = container.add_stream(codec, rate=fps, options=options or {"crf": "18", "g": "10"})
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        stream.codec_context.time_base = time_base or Fraction(1, fps)
        if pixel_aspect is not None:
            stream.codec_context.sample_aspect_ratio = pixel_aspect
        if rotation_deg:
            stream.set_display_rotation(rotation_deg)
        for number, rgb in enumerate(frames):
            picture = VideoFrame.from_ndarray(np.ascontiguousarray(rgb), "rgb24")
            picture = picture.reformat(format=pix_fmt)
            picture.pts = ticks[number] if ticks is not None else number
            picture.time_base = time_base or Fraction(1, fps)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


def write_audio(path: Path, seconds: float = 1.0) -> Path:
    """A file with sound and no picture."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        samples = int(16000 * seconds) // 1024
        for number in range(samples):
            frame = av.AudioFrame.from_ndarray(
                np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
            )
            frame.sample_rate, frame.pts = 16000, number * 1024
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def real_footage(part: str) -> Path:
    """A folder of real footage, or a skip that says why."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "videos"
    folder = Path(os.environ.get("VFM_TEST_VIDEOS", str(beside))) / part
    if not folder.exists():
        pytest.skip(f"no real footage: {folder} does not exist (set VFM_TEST_VIDEOS)")
    return folder
