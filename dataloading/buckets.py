"""Buckets of clips by aspect, resolution and duration: each clip has exactly one."""

import math
from dataclasses import dataclass

OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """How the buckets of a folder are drawn.

    A clip goes to the aspect that is nearest in ratio, or to `other` where that is too far away.
    The outermost buckets of resolution and duration are open.
    """

    aspects: list[str]
    """As `16x9`."""
    short_sides_px: list[int]
    """Lower bounds, rising."""
    durations_s: list[float]
    """Bounds between the buckets, rising; one that is met belongs to the bucket above."""
    aspect_tolerance: float | None = None
    """How far from an aspect a clip may be: 0.1 is up to a tenth wider or narrower. None is any."""

    def of(self, width: int, height: int, duration_s: float) -> str:
        """`ASPECT_RESOLUTION_DURATION`, such as `16x9_360p_2-5s`."""
        return f"{self._aspect(width, height)}_{self._side(width, height)}_{self._span(duration_s)}"

    def _aspect(self, width: int, height: int) -> str:
        ratio = math.log(width / height)

        def distance(name: str) -> float:
            across, down = name.split("x")
            return abs(ratio - math.log(int(across) / int(down)))

        nearest = min(self.aspects, key=distance)
        tolerance = self.aspect_tolerance
        # Half a pixel of rounding is no other shape.
        slack = 0.5 / min(width, height)
        if tolerance is not None and distance(nearest) > math.log1p(tolerance) + slack:
            return OTHER
        return nearest

    def _side(self, width: int, height: int) -> str:
        reached = [side for side in self.short_sides_px if side <= min(width, height)]
        if reached:
            return f"{reached[-1]}p"
        return f"under{self.short_sides_px[0]}p" if self.short_sides_px else "any"

    def _span(self, duration_s: float) -> str:
        bounds = self.durations_s
        above = sum(bound <= duration_s for bound in bounds)
        low = f"{bounds[above - 1]:g}" if above else "0"
        high = f"{bounds[above]:g}" if above < len(bounds) else "inf"
        return f"{low}-{high}s"
