"""Stored pictures to displayed ones: flags of conversion, matrices of colour, display matrices."""

import functools
from dataclasses import dataclass

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation

EXACT = (
    Interpolation.ACCURATE_RND
    | Interpolation.BITEXACT
    # Without these two, 4:2:0 to RGB takes a short way that is two grey levels too dark.
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.FULL_CHR_H_INP
)
"""How pictures are converted everywhere: the same on every machine, without a cast."""


BT709, BT2020 = (0.2126, 0.0722), (0.2627, 0.0593)
_WEIGHTS = {1: BT709, 9: BT2020, 10: BT2020}
"""Weights of red and blue in brightness by `AVColorSpace`: BT.709, BT.2020 twice."""
_BT601 = (0.299, 0.114)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Stored to displayed picture: an optional transpose, then mirrors."""

    transpose: bool = False
    mirror_x: bool = False
    mirror_y: bool = False

    def apply(self, picture: np.ndarray) -> np.ndarray:
        """`[H, W, ...]` to the displayed orientation, as contiguous memory."""
        if self.transpose:
            picture = picture.swapaxes(0, 1)
        if self.mirror_x:
            picture = picture[:, ::-1]
        if self.mirror_y:
            picture = picture[::-1]
        return np.ascontiguousarray(picture)

    @property
    def identity(self) -> bool:
        return not (self.transpose or self.mirror_x or self.mirror_y)


def cropped(
    picture: VideoFrame, box: tuple[int, int, int, int], size: tuple[int, int]
) -> VideoFrame:
    """A box (left, top, width, height) of a yuv420p picture, all even, scaled to `size`."""
    left, top, width, height = box
    planar = picture.to_ndarray()
    luma = planar[: picture.height][top : top + height, left : left + width]
    chroma = planar[picture.height :].reshape(2, picture.height // 2, picture.width // 2)
    chroma = chroma[:, top // 2 : (top + height) // 2, left // 2 : (left + width) // 2]
    flat = np.concatenate([luma.ravel(), chroma.ravel()]).astype(np.uint8, copy=False)
    result = VideoFrame.from_ndarray(flat.reshape(height * 3 // 2, width), "yuv420p")
    result.colorspace, result.color_range = picture.colorspace, picture.color_range
    result.color_primaries, result.color_trc = picture.color_primaries, picture.color_trc
    smaller = size[0] * size[1] < width * height
    kernel = Interpolation.AREA if smaller else Interpolation.BICUBIC
    return result.reformat(width=size[0], height=size[1], interpolation=kernel | EXACT, threads=1)


def turn_of(picture: VideoFrame) -> Turn:
    """The display matrix as transpose and mirrors; oblique matrices count as none.

    The matrix is 3x3 in 16.16 fixed point, row vectors: x' = a x + c y, y' = b x + d y.
    """
    # Side data and their picture hold each other until the garbage collector comes by, so they are
    # read from a picture of no size.
    small = picture.reformat(width=16, height=16, interpolation=Interpolation.POINT, threads=1)
    data = small.side_data.get("DISPLAYMATRIX")
    if data is None:
        return Turn()
    a, b, _, c, d = np.frombuffer(bytes(data), dtype=np.int32)[:5].tolist()
    if a and d and not (b or c):
        return Turn(mirror_x=a < 0, mirror_y=d < 0)
    if b and c and not (a or d):
        return Turn(transpose=True, mirror_x=c < 0, mirror_y=b < 0)
    return Turn()


def weights_of(picture: VideoFrame) -> tuple[float, float]:
    """Of red and blue in its brightness."""
    return _WEIGHTS.get(picture.colorspace, _BT601)


def hdr_weights(picture: VideoFrame) -> tuple[float, float]:
    """The same of high dynamic range, whose matrix is that of BT.2020 where none is named."""
    return BT709 if picture.colorspace == 1 else BT2020


@functools.cache
def bgr_matrix(weights: tuple[float, float], *, full_range: bool) -> np.ndarray:
    """`float64 [3, 4]`: (Y, Cb, Cr, 1) in 0 to 255 to blue, green, red (ITU-R BT.601, BT.709,
    BT.2020).

    Args:
        weights: of red and blue in the brightness.
    """
    kr, kb = weights
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
