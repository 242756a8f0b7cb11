"""Shots of made textures, joined in known ways, for tests of detectors without footage."""

import cv2
import numpy as np

from curation.shots import ShotFinder
from tests.curation import footage

SIZE = (320, 180)
FPS = 25
STEP_US = 40_000


def scene(seed: int, num_frames: int) -> np.ndarray:
    """`float32 [T, H, W, 3]`: a texture that moves a little."""
    return footage.shot(seed, num_frames, size=SIZE, step_px=1.5).astype(np.float32)


def cross_fade(before: np.ndarray, after: np.ndarray, overlap: int) -> np.ndarray:
    """The last `overlap` frames of one blend into the first of the other."""
    tau = ((np.arange(overlap) + 1) / (overlap + 1))[:, None, None, None].astype(np.float32)
    mixed = before[len(before) - overlap :] * (1 - tau) + after[:overlap] * tau
    return np.concatenate([before[: len(before) - overlap], mixed, after[overlap:]])


def fade_out(frames: np.ndarray, num: int) -> np.ndarray:
    """The last `num` frames go to black."""
    left = 1 - (np.arange(num) + 1) / (num + 1)
    gains = np.concatenate([np.ones(len(frames) - num), left]).astype(np.float32)
    return frames * gains[:, None, None, None]


def fade_in(frames: np.ndarray, num: int) -> np.ndarray:
    return fade_out(frames[::-1], num)[::-1]


def boundaries(
    finder: ShotFinder, frames: np.ndarray, times_us: np.ndarray | None = None
) -> list[tuple[int, int]]:
    """What a finder says of frames, which come at 25 per second unless their times are given."""
    if times_us is None:
        times_us = np.arange(len(frames)) * STEP_US
    for at, frame in zip(times_us.tolist(), frames, strict=True):
        bgr = np.clip(frame, 0, 255).astype(np.uint8)[..., ::-1].copy()
        finder.feed(at, bgr, cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY))
    return finder.boundaries()
