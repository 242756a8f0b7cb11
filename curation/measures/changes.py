"""Measures of how a clip changes from frame to frame: stills, repeats, flashes, shaking.

Every frame leaves a few numbers, never a picture; times are those of presentation, so that frame
rates, also varying ones, do not matter.
"""

import math
from array import array

import cv2
import numpy as np

_EQUAL = 0.001
"""Mean absolute difference over the range up to which two pictures are equal: -60 dB, as in
FFmpeg's `freezedetect`."""
_STILL_US = 500_000
"""How long a picture must stay for it to be a still."""
_GRID = 4
_FLASH = 0.1
_FLASH_DARKER = 0.8
_FLASH_AREA = 0.25
_PATH_GAP_US = 30_000
_PATH_RATE = 30
_PATH_PX = (80, 45)
_SMOOTH_S = 1.0


class FrameLog:
    """Takes every frame of a video and keeps what the measures need of it."""

    def __init__(self) -> None:
        self._pts = array("q")
        self._change = array("f")
        """Mean absolute difference to the frame before, 0 to 1; NaN where there is none."""
        self._light = bytearray()
        """Relative luminance, 0 to 255, of 4 x 4 parts of the picture."""
        self._path_pts = array("q")
        self._path = array("f")
        """Movement (right, down) of the picture since the path's time before, in diagonals."""
        self._before: np.ndarray | None = None
        self._path_before: tuple[int, np.ndarray] | None = None
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        self._flow.setFinestScale(1)  # the plane is small already

    def feed(self, pts_us: int, grey: np.ndarray) -> None:
        """`grey` is `uint8 [H, W]` on the reduced plane."""
        before, self._before = self._before, grey
        change = math.nan
        if before is not None:
            change = cv2.norm(before, grey, cv2.NORM_L1) / (255 * grey.size)
        self._pts.append(pts_us)
        self._change.append(change)
        size = _PATH_PX if grey.shape[1] >= grey.shape[0] else _PATH_PX[::-1]
        small = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
        light = cv2.LUT(small, _LUMINANCE)
        self._light += cv2.resize(light, (_GRID, _GRID), interpolation=cv2.INTER_AREA).tobytes()
        if self._path_before is None or pts_us - self._path_before[0] >= _PATH_GAP_US:
            self._follow(pts_us, small, grey.shape)

    def interrupt(self) -> None:
        """Footage is missing here: nothing is compared across the hole."""
        self._before = self._path_before = None

    def _follow(self, pts_us: int, small: np.ndarray, shape: tuple[int, ...]) -> None:
        """The middle of the flow: what most of the picture does, not what moves in it."""
        step = (math.nan, math.nan)
        if self._path_before is not None:
            flow = self._flow.calc(self._path_before[1], small, np.zeros((*small.shape, 2), "f4"))
            right, down = np.median(flow[2::4, 2::4].reshape(-1, 2), axis=0).tolist()
            # The small plane is stretched to its shape; the steps are not.
            diagonal = math.hypot(*shape)
            across, along = shape[1] / small.shape[1], shape[0] / small.shape[0]
            step = (right * across / diagonal, down * along / diagonal)
        self._path_pts.append(pts_us)
        self._path.extend(step)
        self._path_before = (pts_us, small)

    def stillness(self, start_us: int, end_us: int) -> dict[str, float | None]:
        """How much of a span stands still, and how; None where that cannot be told.

        `freeze_s` is the longest time for which the picture stays the same, in seconds; `freeze`
        the share of time in stills, which stay for half a second or longer; `slideshow` the same
        where there is more than one of them, else 0; `duplicate_frames` the share of frames,
        outside of stills, that repeat the one before, as conversions of the frame rate leave them.
        Pictures are equal as in FFmpeg's `freezedetect`: up to -60 dB of mean absolute difference,
        here on the reduced plane.
        """
        first, last = self._rows(start_us, end_us)
        if last - first < 2:
            return dict.fromkeys(("freeze_s", "freeze", "slideshow", "duplicate_frames"))
        times = np.append(np.frombuffer(self._pts, np.int64)[first:last], end_us)
        changed = ~(np.frombuffer(self._change, np.float32)[first + 1 : last] <= _EQUAL)
        begins = np.append(0, np.flatnonzero(changed) + 1)
        lengths = np.diff(np.append(times[begins], end_us))
        frames = np.diff(np.append(begins, last - first))
        stills = lengths >= _STILL_US
        share = float(lengths[stills].sum() / (end_us - start_us))
        moving = ~stills
        num_moving = int(frames[moving].sum())
        repeats = int((frames[moving] - 1).sum())
        return {
            "freeze_s": float(lengths.max() / 1e6),
            "freeze": min(share, 1.0),
            "slideshow": min(share, 1.0) if stills.sum() > 1 else 0.0,
            "duplicate_frames": repeats / (num_moving - 1) if num_moving > 8 else None,
        }

    def flashes(self, start_us: int, end_us: int) -> float | None:
        """The most general flashes in any second of a span.

        A flash is a pair of opposing changes of relative luminance by 0.1 or more, the darker state
        being below 0.8 (WCAG 2.2, "general flash"; ITU-R BT.1702). It counts where a quarter of the
        picture, in sixteenths, flashes so often.
        """
        first, last = self._rows(start_us, end_us)
        if last - first < 2:
            return None
        light = np.frombuffer(self._light, np.uint8).reshape(-1, _GRID * _GRID)[first:last]
        times = np.frombuffer(self._pts, np.int64)[first:last]
        candidates = np.flatnonzero(np.ptp(light, axis=0) >= _FLASH * 255)
        needed = round(_FLASH_AREA * _GRID * _GRID)
        if len(candidates) < needed:
            return 0.0
        rates = sorted(
            (_flashes_of(light[:, part] / 255.0, times) for part in candidates), reverse=True
        )
        return rates[needed - 1]

    def jitter(self, start_us: int, end_us: int) -> float | None:
        """Shaking: root mean square distance of the picture's path from its smooth course, in
        diagonals. None under a second and a half.

        The path is the sum of the movements between frames, at most 33 a second. Its course is a
        parabola over each second around (Savitzky and Golay 1964), so that pans, also beginning
        and ending ones, are no jitter; cf. Liu et al. 2013, "Bundled camera paths", who compare
        the low and the high frequencies of such a path.
        """
        pts = np.frombuffer(self._path_pts, np.int64)
        first, last = (int(i) for i in np.searchsorted(pts, (start_us, end_us)))
        steps = np.frombuffer(self._path, np.float32).reshape(-1, 2)[first + 1 : last]
        times = pts[first:last] / 1e6
        if last - first < 2 or times[-1] - times[0] < 1.5 * _SMOOTH_S or np.isnan(steps).any():
            return None
        path = np.concatenate([np.zeros((1, 2)), np.cumsum(steps, axis=0, dtype=np.float64)])
        even = np.arange(times[0], times[-1], 1 / _PATH_RATE)
        apart = [
            np.interp(even, times, path[:, i])[_HALF:-_HALF]
            - np.convolve(np.interp(even, times, path[:, i]), _COURSE, "valid")
            for i in (0, 1)
        ]
        return float(np.sqrt(np.mean(apart[0] ** 2 + apart[1] ** 2)))

    def _rows(self, start_us: int, end_us: int) -> tuple[int, int]:
        pts = np.frombuffer(self._pts, np.int64)
        first, last = np.searchsorted(pts, (start_us, end_us))
        return int(first), int(last)


def _flashes_of(light: np.ndarray, times: np.ndarray) -> float:
    """The most flashes in any second of one series."""
    turns: list[int] = []
    low = high = float(light[0])
    rising = 0
    for value, at in zip(light.tolist(), times.tolist(), strict=True):
        low, high = min(low, value), max(high, value)
        if rising <= 0 and value - low >= _FLASH and low < _FLASH_DARKER:
            turns.append(at)
            rising, low, high = 1, value, value
        elif rising >= 0 and high - value >= _FLASH and value < _FLASH_DARKER:
            turns.append(at)
            rising, low, high = -1, value, value
    if not turns:
        return 0.0
    inside = np.searchsorted(turns, np.array(turns) + 1_000_000) - np.arange(len(turns))
    return float(inside.max()) / 2


def _luminance() -> np.ndarray:
    """Grey levels to relative luminance: sRGB's curve, as in WCAG 2.2."""
    level = np.arange(256) / 255
    linear = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)
    return np.round(linear * 255).astype(np.uint8)


def _course() -> np.ndarray:
    """Savitzky and Golay's weights of a parabola's middle."""
    at = np.arange(-_HALF, _HALF + 1)
    return np.linalg.pinv(np.vander(at, 3))[-1]


_HALF = round(_SMOOTH_S * _PATH_RATE / 2)
_LUMINANCE = _luminance()
_COURSE = _course()
