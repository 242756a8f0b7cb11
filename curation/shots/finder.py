"""What finds shots, and which one the settings ask for."""

from typing import Protocol

import numpy as np

from common.tape import Spill
from curation.config import ShotsConfig

Boundary = tuple[int, int]
"""Microseconds at which the shot before ends and the next one begins: the same for a cut, apart for
a gradual transition, whose pictures belong to neither."""


class ShotFinder(Protocol):
    """Takes the reduced frames of one source in order; every time is a presentation time."""

    def feed(self, pts_us: int, bgr: np.ndarray, grey: np.ndarray) -> None:
        """`uint8 [H, W, 3]` and `uint8 [H, W]`."""
        ...

    def interrupt(self) -> None:
        """Footage is missing here: what follows is not compared with what came before."""
        ...

    def boundaries(self) -> list[Boundary]:
        """All of them, rising and apart, once the last frame was fed."""
        ...


def shot_finder(config: ShotsConfig, *, fps: float, spill: Spill) -> ShotFinder:
    """The detector that the settings name, and the stitching of what it finds.

    Args:
        spill: where what stitching needs waits for the boundaries.
    Raises `VfmError` where it needs a package that is not installed.
    """
    finder = _detector(config, fps=fps)
    if config.stitch == 0 or config.detector == "stride":
        return finder
    from curation.shots.stitch import StitchingFinder, layout_embedding

    if config.embedder == "layout":
        return StitchingFinder(finder, config.stitch, layout_embedding, spill)
    from curation.shots.embedders import folder_embedder

    embed = folder_embedder(config.embedder, config.device)
    return StitchingFinder(finder, config.stitch, embed, spill)


def _detector(config: ShotsConfig, *, fps: float) -> ShotFinder:
    if config.detector == "blend":
        from curation.shots.blend import BlendFinder

        return BlendFinder(config)
    if config.detector == "transnetv2":
        from curation.shots.transnet import TransNetFinder

        return TransNetFinder(config)
    if config.detector == "stride":
        return StrideFinder(config)
    from curation.shots.library import LibraryFinder

    return LibraryFinder(config, fps=fps)


class StrideFinder:
    """A boundary every so many seconds, whatever the pictures show."""

    def __init__(self, config: ShotsConfig) -> None:
        self._stride_us = round(config.stride_s * 1e6)
        self._next_us: int | None = None
        self._boundaries: list[Boundary] = []

    def feed(self, pts_us: int, bgr: np.ndarray, grey: np.ndarray) -> None:
        if self._next_us is None:
            self._next_us = pts_us + self._stride_us
        elif pts_us >= self._next_us:
            self._boundaries.append((pts_us, pts_us))
            self._next_us += self._stride_us * (1 + (pts_us - self._next_us) // self._stride_us)

    def interrupt(self) -> None:
        self._next_us = None

    def boundaries(self) -> list[Boundary]:
        return self._boundaries
