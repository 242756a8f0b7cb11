"""Pictures made small plane by plane agree with FFmpeg's conversion. One process, no network."""

from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest

from common.media import VideoReader
from common.planes import luma_of, small_picture
from tests.curation import footage


def _scene(size: tuple[int, int]) -> np.ndarray:
    """Smooth colours with a gradient, so that every kind of mean over an area agrees."""
    random = np.random.default_rng(5)
    coarse = random.integers(20, 236, (5, 7, 3)).astype(np.float32)
    return cv2.resize(coarse, size, interpolation=cv2.INTER_LINEAR).astype(np.uint8)


@pytest.mark.parametrize(
    ("pix_fmt", "codec", "size"),
    [
        ("yuv420p", "libx264", (1280, 720)),
        ("yuv420p", "libx264", (1918, 1078)),
        ("yuv420p", "libx264", (176, 144)),
        ("yuvj420p", "mjpeg", (640, 360)),
        ("yuv422p", "libx264", (854, 480)),
        ("yuv444p", "libx264", (640, 360)),
        ("yuv420p10le", "libx264", (640, 360)),
        ("gray", "ffv1", (640, 360)),
        ("bgr0", "ffv1", (640, 360)),
    ],
)
def test_as_ffmpeg_has_it(tmp_path: Path, pix_fmt: str, codec: str, size: tuple[int, int]) -> None:
    frames = np.repeat(_scene(size)[None], 3, axis=0)
    options = {"crf": "4"} if codec == "libx264" else {}
    path = footage.write(
        tmp_path / "a.mkv", frames, codec=codec, pix_fmt=pix_fmt, options=options or {"g": "1"}
    )
    with VideoReader(path) as reader:
        frame = next(reader.frames())
        assert frame.picture.format.name == pix_fmt
        bgr, luma = small_picture(reader, frame.picture, (320, 180))
        wanted = reader.rgb(frame.picture, size=(320, 180))[..., ::-1].astype(float)
        assert bgr.shape == (180, 320, 3) and luma.shape == (180, 320)
        assert np.abs(bgr - wanted).mean() < 1.2
        assert abs((bgr - wanted).mean()) < 0.6
        grey = cv2.cvtColor(wanted.astype(np.uint8), cv2.COLOR_BGR2GRAY).astype(float)
        assert np.abs(luma - grey).mean() < 1.2
        coded = luma_of(frame.picture)
        if pix_fmt == "bgr0":
            assert coded is None
        else:
            assert coded is not None and coded.shape == size[::-1]


def test_turned_and_stretched(tmp_path: Path) -> None:
    frames = np.repeat(_scene((640, 360))[None], 3, axis=0)
    path = footage.write(tmp_path / "a.mp4", frames, rotation_deg=90, pixel_aspect=Fraction(4, 3))
    with VideoReader(path) as reader:
        frame = next(reader.frames())
        bgr, luma = small_picture(reader, frame.picture, (90, 213))
        wanted = reader.rgb(frame.picture, size=(90, 213))[..., ::-1].astype(float)
        assert np.abs(bgr - wanted).mean() < 2.5
        assert luma.shape == (213, 90)


@pytest.mark.parametrize(("colorspace", "kr"), [(1, 0.2126), (5, 0.299), (9, 0.2627)])
def test_the_matrix_is_that_of_the_tag(tmp_path: Path, colorspace: int, kr: float) -> None:
    """Pure red in each matrix comes out red."""
    from av.video.frame import VideoFrame

    kb = {0.2126: 0.0722, 0.299: 0.114, 0.2627: 0.0593}[kr]
    cb = 128 + 224 * (-kr / (2 * (1 - kb)))
    planes = np.concatenate(
        [np.full(64 * 64, 16 + 219 * kr), np.full(1024, cb), np.full(1024, 128 + 112)]
    )
    picture = VideoFrame.from_ndarray(np.round(planes).astype(np.uint8).reshape(96, 64), "yuv420p")
    picture.colorspace = colorspace
    path = footage.write(tmp_path / "a.mp4", np.zeros((2, 64, 64, 3), np.uint8))
    with VideoReader(path) as reader:
        bgr, _ = small_picture(reader, picture, (32, 32))
    assert np.abs(bgr.astype(int) - np.array([0, 0, 255])).max() <= 3
