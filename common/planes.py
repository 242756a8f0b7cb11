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

from common.picture import BT709, bgr_matrix, hdr_weights, weights_of
from common.tone_map import grey_levels, tone_mapped
from common.video_reader import VideoReader

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
    bits, transfer = picture.format.components[0].bits, reader.hdr(picture)
    if transfer is not None:
        return reader.turn(picture).apply(_shown_levels(transfer, bits, _is_full(picture))[coded])
    luma = _deep_to_8(coded, bits - 8)
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
    transfer = reader.hdr(picture)
    if transfer is None:
        bgr, luma = _converted(picture, planes, stored)
    else:
        bgr, luma = _tone_mapped(picture, planes, stored, transfer)
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
    return cv2.transform(cv2.merge(small), bgr_matrix(weights_of(picture), full_range=full)), luma


def _tone_mapped(
    picture: VideoFrame, planes: list[np.ndarray], size: tuple[int, int], transfer: str
) -> tuple[np.ndarray, np.ndarray]:
    scale = 2.0 ** (8 - picture.format.components[0].bits)
    small = [_shrink(planes[0], size), *(_shrink_chroma(plane, size) for plane in planes[1:])]
    levels = [plane.astype(np.float32) * np.float32(scale) for plane in small]
    levels += [np.full_like(levels[0], 128)] * (3 - len(levels))
    matrix = bgr_matrix(hdr_weights(picture), full_range=_is_full(picture))
    coded = cv2.transform(cv2.merge(levels), matrix / 255)
    rgb = tone_mapped(coded[..., ::-1], transfer)
    bgr = cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR)
    return bgr, cv2.transform(bgr, _BT709_LUMA)


@functools.cache
def _shown_levels(transfer: str, bits: int, full: bool) -> np.ndarray:
    """`uint8 [2 ** bits]`: coded brightness to what a grey of it is shown as."""
    scale = 2.0 ** (8 - bits)
    level = np.arange(2**bits) * scale
    share = level / 255 if full else (level - 16) / 219
    greys = grey_levels(transfer)
    return greys[np.round(np.clip(share, 0, 1) * (len(greys) - 1)).astype(int)]


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


_BT709_LUMA = np.array([[BT709[1], 1 - sum(BT709), BT709[0]]])
"""By blue, green and red."""
_LUMA_TO_FULL = np.clip(np.round((np.arange(256) - 16.0) * 255 / 219), 0, 255).astype(np.uint8)
