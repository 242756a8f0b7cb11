"""Which clips are kept: settings that can be decided again from the stored scores."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from curation.limits import Limit, need, need_limits


@dataclass(frozen=True, kw_only=True)
class BlurConfig:
    """Sharpness: variance of the Laplacian over gradient energy on the reduced picture; see
    `curation.scores.sharpness`."""

    min: Limit = 1.0
    """Clips below it are blurred."""
    max: Limit = None
    """Clips above it are oversharp: noise, aliasing, halos of a sharpening filter."""

    def __post_init__(self) -> None:
        need_limits("blur", least=0, min=self.min, max=self.max)


@dataclass(frozen=True, kw_only=True)
class MotionConfig:
    """Mean optical flow, as a fraction of the picture's diagonal per second."""

    min: Limit = 0.0005
    max: Limit = None

    def __post_init__(self) -> None:
        need_limits("motion", least=0, min=self.min, max=self.max)


@dataclass(frozen=True, kw_only=True)
class DarkConfig:
    """Mean brightness, 0 to 255, below which a clip is dark."""

    min: Limit = 20.0

    def __post_init__(self) -> None:
        need_limits("dark", least=0, most=255, min=self.min)


@dataclass(frozen=True, kw_only=True)
class BrightConfig:
    """Mean brightness, 0 to 255, above which a clip is bright."""

    max: Limit = 235.0

    def __post_init__(self) -> None:
        need_limits("bright", least=0, most=255, max=self.max)


@dataclass(frozen=True, kw_only=True)
class AtLeast:
    min: Limit = None


@dataclass(frozen=True, kw_only=True)
class AtMost:
    max: Limit = None


@dataclass(frozen=True, kw_only=True)
class Within:
    min: Limit = None
    max: Limit = None


@dataclass(frozen=True, kw_only=True)
class FreezeConfig:
    """Stretches in which the picture does not change."""

    max: Limit = 0.95
    """Share of the time in stills of half a second or longer; above it `static`."""
    max_s: Limit = None
    """Seconds of the longest."""


@dataclass(frozen=True, kw_only=True)
class JitterConfig:
    """Shaking faster than some 5 Hz, in diagonals."""

    max: Limit = 0.012
    """26 pixels of 1080p to and fro, several times a second, half of the time. What is filmed while
    walking or driving has a tenth to a half of that."""


@dataclass(frozen=True, kw_only=True)
class TextOverlayConfig:
    """Share of the picture under text that stays in its place."""

    max: Limit = 0.12
    """An eighth: a headline and a banner over the whole width. Less may belong to a picture that
    stands still, such as a chart or a page."""
    max_moving: Limit = 0.025
    """The same where the picture moves beneath it, so that the text lies over it. Two lines of
    subtitles are a twentieth, a logo a hundredth."""


_POSSIBLE = {
    "contrast": (0, 1),
    "crushed": (0, 1),
    "blown": (0, 1),
    "letterbox": (0, 1),
    "slideshow": (0, 1),
    "duplicate_frames": (0, 1),
    "blockiness": (0, math.inf),
    "bits_per_pixel": (0, math.inf),
    "flashes": (0, math.inf),
    "jitter": (0, math.inf),
    "text_overlay": (0, 1),
    "logo": (0, 1),
    "camera": (0, math.inf),
    "freeze": (0, math.inf),
}
"""What limits of these sections can be."""


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Which clips are kept: what can be decided again from the stored scores.

    What is null by itself depends on taste and on what a model is for.
    """

    min_clip_s: float = 0.9
    """Shorter clips are rejected as `short`."""
    target_yield: float | None = None
    """Share of the seconds of all clips to keep, 0 to 1. The limits that are not null are chosen
    so, each rejecting the same share of its clips; see `curation.fit.limits_for_yield`."""
    labels: str | None = None
    """A CSV or JSON of `clip_id,keep`, as the report page saves it. The limits, also those that
    are null, are changed as little as reproduces it; see `curation.fit.limits_for_labels`."""
    blur: BlurConfig = field(default_factory=BlurConfig)
    motion: MotionConfig = field(default_factory=MotionConfig)
    dark: DarkConfig = field(default_factory=DarkConfig)
    bright: BrightConfig = field(default_factory=BrightConfig)
    contrast: AtLeast = field(default_factory=AtLeast)
    """RMS contrast, 0 to 1; below it `flat`."""
    crushed: AtMost = field(default_factory=AtMost)
    """Share of the picture that is black without detail."""
    blown: AtMost = field(default_factory=AtMost)
    """Share of the picture that is white without detail."""
    letterbox: AtMost = field(default_factory=AtMost)
    """Share of the picture that is black bars."""
    freeze: FreezeConfig = field(default_factory=FreezeConfig)
    slideshow: AtMost = field(default_factory=AtMost)
    """Share of the time in stills, where there are several."""
    duplicate_frames: AtMost = field(default_factory=AtMost)
    """Share of frames that repeat the one before, stills apart."""
    flashes: AtMost = field(default_factory=AtMost)
    """The most in any second; WCAG's limit is 3."""
    jitter: JitterConfig = field(default_factory=JitterConfig)
    text_overlay: TextOverlayConfig = field(default_factory=TextOverlayConfig)
    logo: AtMost = field(default_factory=AtMost)
    """Share of the picture under strokes that stay in its corners while it moves."""
    camera: Within = field(default_factory=Within)
    """Speed of the camera, diagonals per second; below `static_camera`, above `fast_camera`."""
    blockiness: AtMost = field(default_factory=AtMost)
    """Steps at block borders over steps inside; 1 is none."""
    bits_per_pixel: AtLeast = field(default_factory=AtLeast)
    """Coded bits over coded pixels; below it `low_bitrate`. Codecs need different ones."""

    def __post_init__(self) -> None:
        need(self.min_clip_s >= 0, "min_clip_s", self.min_clip_s, "not negative")
        share = self.target_yield
        need(share is None or 0 < share <= 1, "target_yield", share, "above 0, at most 1, or null")
        both = share is not None and self.labels is not None
        need(not both, "target_yield", share, f"labels={self.labels} set the limits too: give one")
        dark, bright = self.dark.min, self.bright.max
        if isinstance(dark, int | float) and isinstance(bright, int | float):
            need(dark <= bright, "dark.min", dark, f"above bright.max={bright}")
        for section, (least, most) in _POSSIBLE.items():
            need_limits(section, least=least, most=most, **vars(getattr(self, section)))
        if self.labels is not None:  # a folder keeps it, and is decided again from anywhere
            path = Path(self.labels).expanduser().absolute()
            object.__setattr__(self, "labels", str(path))
