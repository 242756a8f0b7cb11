"""Windows of frames from plain video files: vfm, and others used directly."""

import importlib.util
import json
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np

from benchmarks.row import Row
from common.errors import ConfigError

HELP = """
windows of frames from plain video files, beside PyAV used directly, and OpenCV

All subjects read the same windows of the same files in the same random order, as RGB bytes of the
files' own size, each in a process of its own that ends before the next one starts; subjects take
turns over several rounds and the middle round is shown. Opening the files and finding out where
frames lie is not counted, the same for all. Each subject has `threads` threads that take windows;
inside, every decoder has one. The direct ones keep each file open per thread, seek to the key frame
before the window and decode up to its end, as one writes it by hand.

"right" is the share of frames that are nearer, in mean absolute difference, to the true frame (a
whole decode by PyAV) than to any other within two of the window. Conversions to RGB differ by about
a grey level between subjects, so frames of which another differs by less than half a level on
average cannot be told apart and are not counted; "of" says how many were.

examples:
  vfm bench video_loader files=[a.mp4,b.mp4]
"""


@dataclass(kw_only=True)
class Settings:
    files: list[str] = field(default_factory=list)
    windows: int = 200
    frames: int = 5
    threads: int = 2
    rounds: int = 3


Window = tuple[int, int]
"""Number of a file, and position of the first frame."""
Read = Callable[[Window], np.ndarray]
SUBJECTS = ("vfm", "PyAV", "OpenCV")
_CHECKED = 12
_SAME_LEVELS = 0.5


def ours(files: list[str], times: list[np.ndarray], num_frames: int) -> Read:
    import torch

    from dataloading.video import VideoDataset

    dataset = VideoDataset(files, sequence_length=num_frames, dtype=torch.uint8, layout="thwc")
    return lambda w: dataset.read_at(w[0], float(times[w[0]][w[1]])).pixels.numpy()


def pyav(files: list[str], times: list[np.ndarray], num_frames: int) -> Read:
    mine = threading.local()

    def read(window: Window) -> np.ndarray:
        number, first = window
        if not hasattr(mine, "open"):
            mine.open = {}
        if number not in mine.open:
            container = mine.open[number] = av.open(files[number])
            container.streams.video[0].codec_context.thread_count = 1
        container = mine.open[number]
        stream = container.streams.video[0]
        start = (stream.start_time or 0) + round(times[number][first] / float(stream.time_base))
        container.seek(start, stream=stream)
        frames: list[np.ndarray] = []
        for frame in container.decode(stream):
            if frame.pts >= start:
                frames.append(frame.to_ndarray(format="rgb24"))
            if len(frames) == num_frames:
                break
        return np.stack(frames)

    return read


def opencv(files: list[str], times: list[np.ndarray], num_frames: int) -> Read:
    import cv2

    cv2.setNumThreads(1)
    mine = threading.local()

    def read(window: Window) -> np.ndarray:
        number, first = window
        if not hasattr(mine, "open"):
            mine.open = {}
        if number not in mine.open:
            one = [cv2.CAP_PROP_N_THREADS, 1]
            mine.open[number] = cv2.VideoCapture(files[number], cv2.CAP_FFMPEG, one)
        capture = mine.open[number]
        capture.set(cv2.CAP_PROP_POS_FRAMES, first)
        frames = [cv2.cvtColor(capture.read()[1], cv2.COLOR_BGR2RGB) for _ in range(num_frames)]
        return np.stack(frames)

    return read


MAKERS = {"vfm": ours, "PyAV": pyav, "OpenCV": opencv}


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


def right(
    read: Read, windows: list[Window], files: list[str], num_frames: int
) -> tuple[float, int]:
    """Share of frames that are the right ones, and of how many; see the head of the file."""
    good = told = 0
    for number, first in windows[:_CHECKED]:
        last = first + num_frames
        with av.open(files[number]) as container:
            truth = {
                i: frame.to_ndarray(format="rgb24").astype(np.int16)
                for i, frame in enumerate(container.decode(video=0))
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
    return (good / told if told else 0.0), told


def measure_one(subject: str, job: dict[str, Any]) -> dict[str, float]:
    """Runs in a process of its own."""
    files, windows = job["files"], [(n, k) for n, k in job["windows"]]
    times = [np.array(t) for t in job["times"]]
    read = MAKERS[subject](files, times, job["frames"])
    with ThreadPoolExecutor(job["threads"]) as pool:
        warm = [(n, 0) for n in range(len(files)) for _ in range(job["threads"])]
        list(pool.map(read, warm))
        cpu, wall = _cpu_s(), time.perf_counter()
        for _ in pool.map(lambda w: read(w).shape, windows):
            pass
        wall_s, cpu_s = time.perf_counter() - wall, _cpu_s() - cpu
    share, told = right(read, windows, files, job["frames"]) if job["check"] else (0.0, 0)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "right": share, "told": told}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(settings: Settings) -> Iterator[Row]:
    files = [str(Path(name).resolve()) for name in settings.files]
    if not files:
        raise ConfigError("files is empty; for example: vfm bench video_loader files=[a.mp4,b.mp4]")
    times = [frame_times(file) for file in files]
    draw = random.Random(0)
    long = [n for n, t in enumerate(times) if len(t) >= settings.frames]
    chosen = [draw.choice(long) for _ in range(settings.windows)]
    windows = [(n, draw.randrange(len(times[n]) - settings.frames + 1)) for n in chosen]
    job = {
        **asdict(settings),
        "files": files,
        "windows": windows,
        "times": [t.tolist() for t in times],
    }
    results: dict[str, list[dict[str, float]]] = {}
    present = [s for s in SUBJECTS if s != "OpenCV" or importlib.util.find_spec("cv2")]
    for turn in range(settings.rounds):
        for subject in present:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.video_loader", subject],
                input=json.dumps({**job, "check": turn == 0}),
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"{subject} failed: {done.stderr}")
            results.setdefault(subject, []).append(json.loads(done.stdout))
    case = f"{len(files)} files, {settings.frames} frames"
    for subject in SUBJECTS:
        if subject not in results:
            yield _row(case, subject, "windows per second", None, "not installed")
            continue
        rounds = results[subject]
        rate = [settings.windows / r["wall_s"] for r in rounds]
        cpu = [1000 * r["cpu_s"] / settings.windows for r in rounds]
        yield _row(case, subject, "rate", statistics.median(rate), "windows/s")
        yield _row(case, subject, "lowest", min(rate), "windows/s")
        yield _row(case, subject, "highest", max(rate), "windows/s")
        yield _row(case, subject, "CPU", statistics.median(cpu), "ms/window")
        yield _row(case, subject, "right", rounds[0]["right"], "1")
        yield _row(case, subject, "of", rounds[0]["told"], "frames")


def _row(case: str, subject: str, metric: str, value: float | None, unit: str) -> Row:
    return Row(
        benchmark="video_loader", case=case, subject=subject, metric=metric, value=value, unit=unit
    )


if __name__ == "__main__":  # one subject, in a process of its own
    print(json.dumps(measure_one(sys.argv[1], json.load(sys.stdin))))
