"""Which windows are taken from plain video files, and what becomes of their pictures."""

from dataclasses import dataclass

import numpy as np
import torch

from common import rng
from common.errors import ConfigError
from common.indexed_video import FrameTable

COLORS = ("rgb", "ycbcr")
CROPS = ("random", "center")
LAYOUTS = {"tchw": (0, 3, 1, 2), "cthw": (3, 0, 1, 2), "thwc": (0, 1, 2, 3)}
DTYPES = (torch.uint8, torch.float16, torch.float32)
# Absorbs rounding of start + i/fps, far below any frame's duration.
_CLOCK_S = 1e-6


@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """See `VideoDataset`, whose arguments these are."""

    sequence_length: int
    stride: int = 1
    fps: float | None = None
    every: int = 1
    scale: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    crop_at: str = "random"
    flip: float = 0.0
    color: str = "rgb"
    dtype: torch.dtype = torch.float32
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    layout: str = "tchw"

    def __post_init__(self) -> None:
        for name in ("sequence_length", "stride", "every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.fps is not None and not self.fps > 0:
            raise ConfigError(f"fps is {self.fps}, must be above 0, or None for every frame")
        if self.fps is not None and self.stride != 1:
            raise ConfigError(f"fps={self.fps} and stride={self.stride}: give one of them")
        for name, value, known in (
            ("color", self.color, COLORS),
            ("crop_at", self.crop_at, CROPS),
            ("layout", self.layout, tuple(LAYOUTS)),
            ("dtype", self.dtype, DTYPES),
        ):
            if value not in known:
                raise ConfigError(f"{name} is {value}, must be one of {', '.join(map(str, known))}")
        if not 0 <= self.flip <= 1:
            raise ConfigError(f"flip is {self.flip}, a probability from 0 to 1 is needed")
        sizes = [self.scale] if isinstance(self.scale, int) else [*(self.scale or ())]
        if any(side < 1 for side in [*sizes, *(self.crop or ())]):
            raise ConfigError(f"scale={self.scale} crop={self.crop}: sides are at least 1 pixel")
        if (self.mean or self.std) and self.dtype == torch.uint8:
            raise ConfigError("mean and std need dtype torch.float32 or torch.float16, not uint8")
        if self.std is not None and min(self.std) <= 0:
            raise ConfigError(f"std is {self.std}, must be above 0")

    def starts(self, table: FrameTable) -> int:
        """At how many frames of a file a window may begin, every `every`-th counted."""
        return max(0, -(-self._room(table) // self.every))

    def shown_at(self, table: FrameTable, start_s: float) -> int | None:
        """The frame on screen at `start_s`; none where no whole window begins there."""
        first = int(np.searchsorted(table.times_s, start_s + _CLOCK_S, side="right")) - 1
        return first if 0 <= first < self._room(table) else None

    def _room(self, table: FrameTable) -> int:
        """At how many frames, from the first on, a whole window can begin."""
        if self.fps is None:
            return len(table) - (self.sequence_length - 1) * self.stride
        reach_s = (self.sequence_length - 1) / self.fps
        last_s = float(table.times_s[-1])
        return int(np.searchsorted(table.times_s, last_s - reach_s + _CLOCK_S, side="right"))

    def frames_from(self, table: FrameTable, first: int) -> np.ndarray:
        """`int64 [T]`, the positions of the frames that the window from frame `first` on shows."""
        steps = np.arange(self.sequence_length)
        if self.fps is None:
            return first + steps * self.stride
        times_s = table.times_s[first] + steps / self.fps
        return np.searchsorted(table.times_s, times_s + _CLOCK_S, side="right") - 1

    def scaled(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height of a picture of `size` after scaling."""
        if self.scale is None:
            return size
        if not isinstance(self.scale, int):
            return self.scale[0], self.scale[1]
        short = min(size)
        return tuple(max(1, round(side * self.scale / short)) for side in size)  # type: ignore

    def output_size(self, size: tuple[int, int], name: str) -> tuple[int, int]:
        """Width and height that a file of `size` gives. Raises `ConfigError` naming the file."""
        scaled = self.scaled(size)
        if self.crop is None:
            return scaled
        if self.crop[0] > scaled[0] or self.crop[1] > scaled[1]:
            raise ConfigError(
                f"crop {self.crop[0]}x{self.crop[1]} is larger than {name}, which is "
                f"{scaled[0]}x{scaled[1]} where it is cut: give a larger scale or a smaller crop"
            )
        return self.crop[0], self.crop[1]


@dataclass(frozen=True, kw_only=True)
class Chance:
    """What is drawn for one window: a function of seed, epoch and the window's number alone."""

    left: int
    top: int
    flip: bool

    @staticmethod
    def draw(
        options: WindowOptions, scaled: tuple[int, int], *, seed: int, epoch: int, index: int
    ) -> "Chance":
        width, height = options.crop or scaled
        room = scaled[0] - width, scaled[1] - height
        key = rng.key(seed, "video_window", step=epoch, sample_id=str(index))
        if options.crop_at == "random":
            left = rng.integer(key, room[0] + 1, position=0)
            top = rng.integer(key, room[1] + 1, position=1)
        else:
            left, top = room[0] // 2, room[1] // 2
        flip = float(rng.uniform(key, torch.tensor(2))) < options.flip
        return Chance(left=left, top=top, flip=flip)


def finish(frames: torch.Tensor, options: WindowOptions) -> torch.Tensor:
    """`uint8 [..., T, H, W, 3]` to the wanted layout, type and normalisation, where it lies.

    Floats are 0 to 1 before `mean` is taken away and `std` divided by. The arithmetic is in
    float32 whatever the result's type.
    """
    lead = frames.dim() - 4
    order = [*range(lead), *(lead + axis for axis in LAYOUTS[options.layout])]
    if options.dtype == torch.uint8:
        return frames.permute(order).contiguous()
    values = frames.to(torch.float32) / 255
    if options.mean is not None:
        values = values - torch.tensor(options.mean, device=frames.device)
    if options.std is not None:
        values = values / torch.tensor(options.std, device=frames.device)
    return values.permute(order).to(options.dtype).contiguous()
