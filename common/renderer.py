"""How decoded pictures are shown: turned, with square pixels, and of standard dynamic range."""

from fractions import Fraction

import cv2
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation

from common.picture import EXACT, Turn, bgr_matrix, hdr_weights, turn_of
from common.tone_map import HDR, tone_mapped


class Renderer:
    """What a stream's pictures have in common when they are shown.

    Args:
        tone_map: pictures of high dynamic range come out as `common.tone_map` makes them; without
            it their code values are taken as they are.
    """

    def __init__(self, *, tone_map: bool = True) -> None:
        self._tone_map = tone_map
        self._pixel_ratio = Fraction(1)
        """Width of a stored pixel over its height."""
        self._known_turn: tuple[int, Turn] | None = None

    def hdr(self, picture: VideoFrame) -> str | None:
        """The curve to be mapped, `PQ` or `HLG`; None where there is none."""
        return HDR.get(picture.color_trc) if self._tone_map else None

    def display_size(self, picture: VideoFrame) -> tuple[int, int]:
        """(width, height) of a picture after rotation, with square pixels.

        The longer side of a pixel is kept and the other stretched, so that nothing is thrown away.
        """
        width, height = picture.width, picture.height
        ratio = self._pixel_ratio
        if ratio > 1:
            width = round(width * ratio)
        elif 0 < ratio < 1:
            height = round(height / ratio)
        return (height, width) if self.turn(picture).transpose else (width, height)

    def rgb(self, picture: VideoFrame, *, size: tuple[int, int] | None = None) -> np.ndarray:
        """`uint8 [H, W, 3]` as displayed, scaled to `size` (width, height) in the same pass."""
        turn, transfer = self.turn(picture), self.hdr(picture)
        if transfer is None:
            return turn.apply(self._scaled(picture, size, "rgb24", turn).to_ndarray())
        # To RGB of 16 bits swscale overflows with these flags, so the matrix is ours.
        scaled = self._scaled(picture, size, "yuv444p16le", turn)
        levels = scaled.to_ndarray().astype(np.float32) * np.float32(255 / 65535)
        coded = cv2.transform(levels, bgr_matrix(hdr_weights(picture), full_range=True) / 255)
        return turn.apply(tone_mapped(coded[..., ::-1], transfer))

    def yuv(self, picture: VideoFrame, *, size: tuple[int, int]) -> VideoFrame:
        """The picture as yuv420p of limited range, displayed orientation, even (width, height).

        The colour matrix is kept, not converted, so the picture keeps its tags; tone mapping gives
        BT.709 and its tags. Where nothing is to be done the same picture comes back.
        """
        if size[0] % 2 or size[1] % 2:
            raise ValueError(f"4:2:0 needs an even size, got {size[0]}x{size[1]}")
        if self.hdr(picture) is not None:
            return _bt709(self.rgb(picture, size=size))
        turn = self.turn(picture)
        scaled = self._scaled(picture, size, "yuv420p", turn)
        if turn.identity:
            return scaled
        planar = scaled.to_ndarray()
        width, height = scaled.width, scaled.height
        luma = turn.apply(planar[:height])
        chroma = planar[height:].reshape(2, height // 2, width // 2)
        turned = np.concatenate([luma.ravel(), *(turn.apply(plane).ravel() for plane in chroma)])
        result = VideoFrame.from_ndarray(turned.reshape(size[1] * 3 // 2, size[0]), "yuv420p")
        result.colorspace, result.color_range = scaled.colorspace, scaled.color_range
        result.color_primaries, result.color_trc = scaled.color_primaries, scaled.color_trc
        return result

    def turn(self, picture: VideoFrame) -> Turn:
        """What brings a picture's lines as they are stored to the displayed orientation."""
        # Read anew only where the angle changes within the stream.
        if self._known_turn is None or picture.rotation != self._known_turn[0]:
            self._known_turn = (picture.rotation, turn_of(picture))
        return self._known_turn[1]

    def _scaled(
        self, picture: VideoFrame, size: tuple[int, int] | None, pix_fmt: str, turn: Turn
    ) -> VideoFrame:
        width, height = size or self.display_size(picture)
        if turn.transpose:
            width, height = height, width
        before, after = picture.width * picture.height, width * height
        if after < before:
            kernel = Interpolation.AREA
        else:
            kernel = Interpolation.BICUBIC if after > before else Interpolation.BILINEAR
        full_range = picture.color_range == 2 or picture.format.name.startswith("yuvj")
        return picture.reformat(
            width=width,
            height=height,
            format=pix_fmt,
            interpolation=kernel | EXACT,
            src_color_range="JPEG" if full_range else "MPEG",
            dst_color_range="MPEG" if pix_fmt == "yuv420p" else "JPEG",
            threads=1,
        )


def _bt709(rgb: np.ndarray) -> VideoFrame:
    """`uint8 [H, W, 3]` as yuv420p of limited range, with all its tags."""
    picture = VideoFrame.from_ndarray(rgb, "rgb24").reformat(
        format="yuv420p",
        dst_colorspace="ITU709",
        src_color_range="JPEG",
        dst_color_range="MPEG",
        interpolation=Interpolation.AREA | EXACT,
        threads=1,
    )
    picture.colorspace = picture.color_primaries = picture.color_trc = 1
    picture.color_range = 1
    return picture
