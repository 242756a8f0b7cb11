"""Windows of frames straight from plain video files, for everyone's training loop.

    dataset = VideoDataset(["a.mp4", "b.mkv"], sequence_length=5)
    loader = VideoLoader(dataset, batch_size=8, shuffle=True)
    for batch in loader:
        loss = model(batch.frames)

The interface is that of NVIDIA's NVVL. Decoding is FFmpeg's, on processor threads; frames travel
to a GPU as bytes, without waiting, and become floats there.
"""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from common import rng
from common.errors import ConfigError, DataError, MediaError
from common.indexed_video import FrameTable, IndexedVideo
from dataloading.video_loader import VideoBatch, VideoLoader
from dataloading.video_pool import ReaderPool
from dataloading.video_spec import Chance, WindowOptions, finish

__all__ = ["VideoBatch", "VideoDataset", "VideoLoader", "VideoWindow"]


@dataclass(frozen=True, kw_only=True)
class VideoWindow:
    """One window before it gets its type and layout."""

    pixels: Tensor
    """`uint8 [T, H, W, 3]`, scaled, cropped and flipped."""
    times_s: Tensor
    """`float64 [T]`, presentation time of each frame, from the start of its file."""
    file: str
    index: int
    """Number of the window in the dataset; -1 where it was asked for by time."""


class VideoDataset(Dataset[Tensor]):
    """All windows of some video files, each known by its number, or by file and time.

    Window i begins at one frame of one file and holds `sequence_length` frames; all that can begin
    are there, in order of files and times. Frames are found by presentation time, never by counting
    at an average rate. `dataset[i]` decodes at once and gives the frames alone; loops should use
    `VideoLoader`.

    Args:
        files: paths of videos, in any container and codec that FFmpeg reads.
        stride: takes every so-manieth frame.
        fps: takes the frames shown at this rate instead; a frame repeats where it is shown longer.
        every: begins a window at every so-manieth frame only.
        scale: (width, height), or the length of the shorter side in pixels.
        crop: (width, height), cut after scaling, at `crop_at`: `random` or `center`.
        flip: probability of a mirrored window.
        color: `rgb`, or `ycbcr` in full range by the file's own matrix.
        dtype: `torch.uint8` (0 to 255), `torch.float16` or `torch.float32` (0 to 1).
        mean, std: per channel, for floats: `(value - mean) / std`.
        layout: of a window, `tchw`, `cthw` or `thwc`.
        seed: of crops and flips, which depend on (seed, epoch, window) and nothing else.
        max_open_files: that stay open while nobody reads them.
        num_threads: that look through the files' packets here, once.

    Raises `ConfigError` for impossible options, and `DataError` naming files that cannot be read.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        sequence_length: int = 5,
        *,
        stride: int = 1,
        fps: float | None = None,
        every: int = 1,
        scale: int | tuple[int, int] | None = None,
        crop: tuple[int, int] | None = None,
        crop_at: str = "random",
        flip: float = 0.0,
        color: str = "rgb",
        dtype: torch.dtype = torch.float32,
        mean: tuple[float, float, float] | None = None,
        std: tuple[float, float, float] | None = None,
        layout: str = "tchw",
        seed: int = 0,
        max_open_files: int = 32,
        num_threads: int = 4,
    ) -> None:
        self.options = WindowOptions(
            sequence_length=sequence_length,
            stride=stride,
            fps=fps,
            every=every,
            scale=scale,
            crop=crop,
            crop_at=crop_at,
            flip=flip,
            color=color,
            dtype=dtype,
            mean=mean,
            std=std,
            layout=layout,
        )
        rng.check_seed(seed)
        if max_open_files < 1 or num_threads < 1:
            raise ConfigError(
                f"max_open_files={max_open_files} num_threads={num_threads}: at least 1 is needed"
            )
        self.seed = seed
        self.files = [str(file) for file in files]
        if not self.files:
            raise ConfigError("files is empty: give at least one video file")
        self.tables = _tables(self.files, num_threads)
        self._pool = ReaderPool(self.files, self.tables, max_open=max_open_files)
        counts = [self.options.starts(table) for table in self.tables]
        self._ends = np.cumsum(counts, dtype=np.int64)
        self.size = self._common_size()
        if not len(self):
            longest = max(map(len, self.tables))
            raise DataError(
                f"no window of {sequence_length} frames (stride={stride}, fps={fps}) fits any of "
                f"{len(self.files)} files, of which the longest has {longest} frames"
            )

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Tensor:
        """The frames of a window in the options' layout and type, with epoch 0's crop and flip."""
        return finish(self.read(index).pixels, self.options)

    def read(self, index: int, *, epoch: int = 0) -> VideoWindow:
        """Window `index`, negative from the end. May be called from many threads.

        Raises `IndexError`, and `MediaError` naming the file where frames do not decode.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"window {index} of a dataset of {len(self)}")
        index %= len(self)
        number = self._number_of(index)
        before = int(self._ends[number - 1]) if number else 0
        first = (index - before) * self.options.every
        return self._read(number, first, epoch=epoch, index=index)

    def file_of(self, index: int) -> str:
        """The file of window `index`."""
        return self.files[self._number_of(index)]

    def _number_of(self, index: int) -> int:
        return int(np.searchsorted(self._ends, index, side="right"))

    def read_at(self, file: int, start_s: float) -> VideoWindow:
        """The window of file number `file` that begins with the frame shown at `start_s`, at any
        frame, whatever `every` is; a random crop or flip is then that of number -1.

        Raises `IndexError` where the file ends before the window does.
        """
        table = self.tables[file]
        first = self.options.shown_at(table, start_s)
        if first is None:
            raise IndexError(f"{self.files[file]} has no whole window at {start_s} s")
        return self._read(file, first, epoch=0, index=-1)

    def close(self) -> None:
        """Closes the files; later use opens them again."""
        self._pool.close()

    def fingerprint(self) -> str:
        """Changes when options, seed, files' order, or any frame's time do."""
        digest = hashlib.sha256(json.dumps(self._identity(), sort_keys=True).encode())
        for table in self.tables:
            digest.update(table.times_s.tobytes() + repr(table.size).encode())
        return digest.hexdigest()[:16]

    def _identity(self) -> dict[str, object]:
        options = {name: str(value) for name, value in asdict(self.options).items()}
        return {"seed": self.seed, "files": [Path(f).name for f in self.files], **options}

    def _read(self, number: int, first: int, *, epoch: int, index: int) -> VideoWindow:
        table, options = self.tables[number], self.options
        shown = options.frames_from(table, first)
        wanted, place = np.unique(shown, return_inverse=True)
        scaled = options.scaled(table.size)
        chance = Chance.draw(options, scaled, seed=self.seed, epoch=epoch, index=index)
        width, height = self.size
        pixels = np.empty((len(wanted), height, width, 3), dtype=np.uint8)
        with self._pool.reader(number) as reader:
            convert = reader.rgb if options.color == "rgb" else reader.ycbcr
            for i, picture in enumerate(reader.pictures(wanted.tolist())):
                whole = convert(picture, size=scaled)
                cut = whole[chance.top : chance.top + height, chance.left : chance.left + width]
                pixels[i] = cut[:, ::-1] if chance.flip else cut
        repeated = len(wanted) < len(shown)
        return VideoWindow(
            pixels=torch.from_numpy(pixels[place] if repeated else pixels),
            times_s=torch.from_numpy(table.times_s[shown]),
            file=self.files[number],
            index=index,
        )

    def _common_size(self) -> tuple[int, int]:
        """Width and height of all windows; batches need one."""
        sizes: dict[tuple[int, int], str] = {}
        for file, table in zip(self.files, self.tables, strict=True):
            sizes.setdefault(self.options.output_size(table.size, file), file)
        if len(sizes) > 1:
            (one, first), (other, second) = list(sizes.items())[:2]
            raise ConfigError(
                f"{first} gives windows of {one[0]}x{one[1]} and {second} of "
                f"{other[0]}x{other[1]}: set scale, or scale and crop, to make them equal"
            )
        return next(iter(sizes))


def _tables(files: list[str], num_threads: int) -> list[FrameTable]:
    def scan(file: str) -> FrameTable | str:
        try:
            with IndexedVideo(file) as video:
                return video.table
        except MediaError as error:
            return str(error)

    with ThreadPoolExecutor(min(num_threads, len(files)), "video-scan") as pool:
        found = list(pool.map(scan, files))
    faults = [fault for fault in found if isinstance(fault, str)]
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise DataError(
            f"{len(faults)} of {len(files)} files cannot be read: {'; '.join(faults[:5])}{more}"
        )
    return [table for table in found if isinstance(table, FrameTable)]
