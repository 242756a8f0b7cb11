"""How windows of frames are read from video files and from pictures, by vfm and by others, and
whether they are the right ones. For `benchmarks.video_loader` and `benchmarks.video_formats`.

A maker gets the files, the times of their frames and the length of a window, and gives a function
from a window to its frames, which many threads may call. Each direct one keeps a file open per
thread, and its decoder has one thread; it seeks to the key frame before the window and decodes up
to its end, as one writes it by hand.
"""

import importlib.util
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import av
import numpy as np
from av.container import InputContainer

Window = tuple[int, int]
"""Number of a file, and position of the first frame."""
Read = Callable[[Window], np.ndarray]
"""To `uint8 [T, H, W, 3]`, RGB."""
Maker = Callable[[list[str], list[np.ndarray], int], Read]
_CHECKED = 12
_SAME_LEVELS = 0.5
T = TypeVar("T")


def ours(files: list[str], times: list[np.ndarray], num_frames: int) -> Read:
    import torch

    from dataloading.video import VideoDataset

    dataset = VideoDataset(files, sequence_length=num_frames, dtype=torch.uint8, layout="thwc")
    return lambda w: dataset.read_at(w[0], float(times[w[0]][w[1]])).pixels.numpy()


def pyav(files: list[str], times: list[np.ndarray], num_frames: int) -> Read:
    def opened(number: int) -> InputContainer:
        container = av.open(files[number])
        container.streams.video[0].codec_context.thread_count = 1
        return container

    container_of = _per_thread(opened)

    def read(window: Window) -> np.ndarray:
        number, first = window
        container = container_of(number)
        stream = container.streams.video[0]
        assert stream.time_base is not None
        start = (stream.start_time or 0) + round(times[number][first] / float(stream.time_base))
        container.seek(start, stream=stream)
        frames: list[np.ndarray] = []
        for frame in container.decode(stream):
            if frame.pts is not None and frame.pts >= start:
                frames.append(frame.to_ndarray(format="rgb24"))
            if len(frames) == num_frames:
                break
        return np.stack(frames)

    return read


def opencv(files: list[str], times: list[np.ndarray], num_frames: int) -> Read:
    import cv2

    cv2.setNumThreads(1)
    one = [cv2.CAP_PROP_N_THREADS, 1]
    capture_of = _per_thread(lambda number: cv2.VideoCapture(files[number], cv2.CAP_FFMPEG, one))

    def read(window: Window) -> np.ndarray:
        number, first = window
        capture = capture_of(number)
        capture.set(cv2.CAP_PROP_POS_FRAMES, first)
        frames = [cv2.cvtColor(capture.read()[1], cv2.COLOR_BGR2RGB) for _ in range(num_frames)]
        return np.stack(frames)

    return read


def torchcodec(files: list[str], times: list[np.ndarray], num_frames: int) -> Read:
    from torchcodec.decoders import VideoDecoder  # type: ignore[import-not-found]

    decoder_of = _per_thread(
        lambda number: VideoDecoder(files[number], dimension_order="NHWC", num_ffmpeg_threads=1)
    )

    def read(window: Window) -> np.ndarray:
        number, first = window
        return decoder_of(number).get_frames_in_range(first, first + num_frames).data.numpy()

    return read


def pictures(folders: list[str], times: list[np.ndarray], num_frames: int) -> Read:
    """A file for each frame, through Pillow."""
    from PIL import Image

    files = [sorted(Path(folder).iterdir()) for folder in folders]

    def read(window: Window) -> np.ndarray:
        number, first = window
        return np.stack(
            [np.asarray(Image.open(p)) for p in files[number][first : first + num_frames]]
        )

    return read


MAKERS: dict[str, Maker] = {
    "vfm": ours,
    "PyAV": pyav,
    "OpenCV": opencv,
    "torchcodec": torchcodec,
}


def _per_thread(open_: Callable[[int], T]) -> Callable[[int], T]:
    """Of each file, what the calling thread opened."""
    mine = threading.local()

    def of(number: int) -> T:
        if not hasattr(mine, "open"):
            mine.open = {}
        if number not in mine.open:
            mine.open[number] = open_(number)
        return mine.open[number]

    return of


def frame_times(file: str) -> np.ndarray:
    """Seconds of each frame, by a whole decode."""
    with av.open(file) as container:
        stream = container.streams.video[0]
        base = stream.time_base
        assert base is not None
        stamps = [
            f.pts - (stream.start_time or 0) for f in container.decode(stream) if f.pts is not None
        ]
        return np.sort(np.array(stamps)) * float(base)


def whole(file: str) -> Iterator[np.ndarray]:
    """All frames, from the first on without a seek: by OpenCV where it is there, which brings an
    FFmpeg of its own, else by PyAV."""
    if importlib.util.find_spec("cv2"):
        import cv2

        capture = cv2.VideoCapture(file, cv2.CAP_FFMPEG)
        while (read := capture.read())[0]:
            yield cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB)
        return
    with av.open(file) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def right(read: Read, windows: list[Window], files: list[str], num_frames: int) -> dict[str, float]:
    """`right`: the share of frames that are nearer, in mean absolute difference, to the true frame
    (of `whole`) than to any other within two of the window; `of`: how many could be told apart, as
    no other differs by less than half a level; `levels`: their mean difference from the true one,
    which is what conversions to RGB differ by.
    """
    good = told = 0
    levels: list[float] = []
    for number, first in windows[:_CHECKED]:
        last = first + num_frames
        truth = {
            i: frame.astype(np.int16)
            for i, frame in enumerate(whole(files[number]))
            if first - 2 <= i < last + 2
        }
        given = read((number, first))
        for i in range(first, last):
            others = [k for k in truth if k != i]
            if any(np.abs(truth[k] - truth[i]).mean() < _SAME_LEVELS for k in others):
                continue
            told += 1
            errors = {k: float(np.abs(t - given[i - first]).mean()) for k, t in truth.items()}
            good += min(errors, key=lambda k: errors[k]) == i
            levels.append(errors[i])
    if not told:
        return {"of": 0}
    return {"right": good / told, "of": told, "levels": sum(levels) / told}
