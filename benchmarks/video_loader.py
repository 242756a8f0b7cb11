"""Windows of frames from plain video files: vfm against PyAV used directly, and OpenCV.

    python -m benchmarks.video_loader VIDEO [VIDEO ...] [windows=N frames=N threads=N rounds=N]

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
"""

import json
import platform
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import numpy as np

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
        stamps = [f.pts - (stream.start_time or 0) for f in container.decode(stream)]
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


def measure(subject: str, job: dict[str, Any]) -> dict[str, float]:
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


def main(argv: list[str]) -> int:
    if argv[:1] == ["--measure"]:
        print(json.dumps(measure(argv[1], json.load(sys.stdin))))
        return 0
    settings = {"windows": 200, "frames": 5, "threads": 2, "rounds": 3}
    words = [w for w in argv if w.partition("=")[0] in settings]
    settings |= {k: int(v) for k, _, v in (w.partition("=") for w in words)}
    files = [str(Path(w).resolve()) for w in argv if w not in words]
    if not files:
        sys.stderr.write((__doc__ or "") + "\n")
        return 2
    times = [frame_times(file) for file in files]
    draw = random.Random(0)
    long = [n for n, t in enumerate(times) if len(t) >= settings["frames"]]
    chosen = [draw.choice(long) for _ in range(settings["windows"])]
    windows = [(n, draw.randrange(len(times[n]) - settings["frames"] + 1)) for n in chosen]
    job = {**settings, "files": files, "windows": windows, "times": [t.tolist() for t in times]}
    results: dict[str, list[dict[str, float]]] = {}
    absent = []
    for turn in range(settings["rounds"]):
        for subject in SUBJECTS:
            if subject in absent:
                continue
            made = subprocess.run(
                [sys.executable, "-m", "benchmarks.video_loader", "--measure", subject],
                input=json.dumps({**job, "check": turn == 0}),
                capture_output=True,
                text=True,
                check=False,
            )
            if "No module named 'cv2'" in made.stderr:
                absent.append(subject)
                continue
            if made.returncode:
                sys.stderr.write(made.stderr)
                return 1
            results.setdefault(subject, []).append(json.loads(made.stdout))
    print(f"{platform.machine()}, {platform.python_version()}, PyAV {av.__version__}")
    print(" ".join(f"{k}={v}" for k, v in settings.items()), f"files={len(files)}")
    print("median of the rounds [lowest, highest]; CPU s is user and system time of the process")
    print(f"{'subject':8} {'windows/s':>24} {'CPU ms/window':>24} {'right':>6} {'of':>5}")
    for subject, rounds in results.items():
        rate = sorted(settings["windows"] / r["wall_s"] for r in rounds)
        cpu = sorted(1000 * r["cpu_s"] / settings["windows"] for r in rounds)
        seen = f"{rounds[0]['right']:6.1%} {rounds[0]['told']:5}"
        print(f"{subject:8} {_spread(rate):>24} {_spread(cpu):>24} {seen}")
    for subject in absent:
        print(f"{subject:8} is not installed")
    return 0


def _spread(values: list[float]) -> str:
    return f"{values[len(values) // 2]:.1f} [{values[0]:.1f}, {values[-1]:.1f}]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
