"""Decoded planes as arrays, and small pictures made from them.

Planes are made small first and converted then: a twentieth of the pixels of a 1080p picture reaches
the conversion, which costs less than half of scaling and converting at once.
"""

import functools
from typing import Any

import cv2
import numpy as np
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane

from common.video_reader import VideoReader

_KR_KB = {1: (0.2126, 0.0722), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
"""Weights of red and blue in brightness by `AVColorSpace`: BT.709, BT.2020 twice."""
_BT601 = (0.299, 0.114)
_FULL_RANGE = 2
"""AVCOL_RANGE_JPEG"""


def luma_of(picture: VideoFrame) -> np.ndarray | None:
    """The brightness as it was coded, unscaled and unturned: `uint8` or `uint16 [H, W]`, valid
    as long as the picture. None where the format keeps none in a plane of its own."""
    planar = _planar(picture)
    return planar[0] if planar else None


def shown_luma(reader: VideoReader, picture: VideoFrame) -> np.ndarray | None:
    """The brightness as displayed but for the shape of pixels, unscaled, of full range: `uint8
    [H, W]`; None as `luma_of`."""
    coded = luma_of(picture)
    if coded is None:
        return None
    luma = _deep_to_8(coded, picture.format.components[0].bits - 8)
    return reader.turn(picture).apply(luma if _is_full(picture) else cv2.LUT(luma, _LUMA_TO_FULL))


def small_picture(
    reader: VideoReader, picture: VideoFrame, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """(BGR `uint8 [H, W, 3]`, brightness `uint8 [H, W]`) as displayed, of full range, scaled to
    `size` (width, height) by area."""
    turn = reader.turn(picture)
    planes = _planar(picture)
    if planes is None:
        bgr = cv2.cvtColor(reader.rgb(picture, size=size), cv2.COLOR_RGB2BGR)
        return bgr, cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY)
    stored = (size[1], size[0]) if turn.transpose else size
    bgr, luma = _converted(picture, planes, stored)
    return turn.apply(bgr), turn.apply(luma)


def _converted(
    picture: VideoFrame, planes: list[np.ndarray], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    shift = picture.format.components[0].bits - 8
    small = [_deep_to_8(_shrink(planes[0], size), shift)]
    small += [_deep_to_8(_shrink_chroma(plane, size), shift) for plane in planes[1:]]
    full = _is_full(picture)
    luma = small[0] if full else cv2.LUT(small[0], _LUMA_TO_FULL)
    if len(small) == 1:
        return cv2.merge([luma, luma, luma]), luma
    kr, kb = _KR_KB.get(picture.colorspace, _BT601)
    return cv2.transform(cv2.merge(small), _matrix(kr, kb, full)), luma


def _is_full(picture: VideoFrame) -> bool:
    # FFmpeg, too, takes grey pictures for ones of full range, whatever they say.
    tagged = picture.color_range == _FULL_RANGE
    return tagged or picture.format.name.startswith(("yuvj", "gray"))


def _planar(picture: VideoFrame) -> list[np.ndarray] | None:
    """Luma, and both chromas where there are any; transparency is left out."""
    name, parts = picture.format.name, picture.format.components
    if not name.startswith(("yuv", "gray")) or name.endswith("be") or not 8 <= parts[0].bits <= 16:
        return None
    wanted = 1 if name.startswith("gray") else 3
    # Packed formats, such as yuyv422, have more than luma in a line.
    if len(parts) < wanted or len({part.plane for part in parts[:wanted]}) < wanted:
        return None
    kind = np.dtype(np.uint8 if parts[0].bits == 8 else "<u2")
    return [_lines(plane, kind) for plane in picture.planes[:wanted]]


def _lines(plane: VideoPlane, kind: np.dtype) -> np.ndarray:
    memory: Any = plane  # a buffer, which PyAV's stubs do not say
    return np.frombuffer(memory, kind).reshape(plane.height, -1)[:, : plane.width]


def _shrink(plane: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """By the mean over each new pixel's area; halving first is many times faster and, for whole
    factors, the same."""
    while plane.shape[1] >= 4 * size[0] and plane.shape[0] >= 4 * size[1]:
        plane = _halved(plane)
    height, width = plane.shape
    grows = width < size[0] or height < size[1]
    return cv2.resize(plane, size, interpolation=cv2.INTER_CUBIC if grows else cv2.INTER_AREA)


def _shrink_chroma(plane: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Roughly, as the eye sees colour."""
    while plane.shape[1] >= 2 * size[0] and plane.shape[0] >= 2 * size[1]:
        plane = _halved(plane)
    return cv2.resize(plane, size, interpolation=cv2.INTER_LINEAR)


def _halved(plane: np.ndarray) -> np.ndarray:
    height, width = plane.shape[0] // 2, plane.shape[1] // 2
    even = plane[: 2 * height, : 2 * width]
    return cv2.resize(even, (width, height), interpolation=cv2.INTER_AREA)


def _deep_to_8(plane: np.ndarray, shift: int) -> np.ndarray:
    return cv2.convertScaleAbs(plane, alpha=1 / 2**shift) if shift else plane


@functools.cache
def _matrix(kr: float, kb: float, full_range: bool) -> np.ndarray:
    """`float64 [3, 4]`: (Y, Cb, Cr, 1) in 0 to 255 to blue, green, red (ITU-R BT.601, BT.709,
    BT.2020)."""
    kg = 1 - kr - kb
    luma, chroma, black = (1.0, 1.0, 0) if full_range else (255 / 219, 255 / 224, 16)
    rows = np.array(
        [
            [luma, chroma * 2 * (1 - kb), 0],
            [luma, -chroma * 2 * kb * (1 - kb) / kg, -chroma * 2 * kr * (1 - kr) / kg],
            [luma, 0, chroma * 2 * (1 - kr)],
        ]
    )
    offset = rows @ np.array([-black, -128, -128])
    return np.column_stack([rows, offset])


_LUMA_TO_FULL = np.clip(np.round((np.arange(256) - 16.0) * 255 / 219), 0, 255).astype(np.uint8)
