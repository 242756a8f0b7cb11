"""Thumbnails wait in a file, of which nothing stays. No video."""

from pathlib import Path

import cv2
import numpy as np

from common.tape import Spill
from curation.stages.strip import Strip


def _level(jpeg: bytes | None) -> float:
    assert jpeg is not None
    picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    return float(picture.mean())


def test_every_picture_is_found_again_and_the_file_goes(tmp_path: Path) -> None:
    folder = tmp_path / "thumbs"
    with Spill(folder) as spill:
        strip = Strip(16, spill)
        assert strip.nearest(0, 10**9) is None
        for number in range(2000):
            strip.feed(number * 250_000, np.full((18, 32, 3), number % 200, np.uint8))
        for number in (0, 7, 511, 512, 1999):
            at_us = number * 250_000
            assert abs(_level(strip.nearest(at_us - 1, at_us + 1)) - number % 200) < 2
        assert abs(_level(strip.nearest(0, 1_000_000)) - 2) < 2
        assert strip.nearest(1, 249_999) is None
    assert list(folder.iterdir()) == []
