"""Windows of frames from plain video files: vfm, and others used directly."""

import random
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._apart import apart, cpu_s_used
from benchmarks._video_readers import MAKERS, frame_times, right
from benchmarks.row import Row
from common.errors import ConfigError

HELP = """
windows of frames from plain video files, beside PyAV, OpenCV and torchcodec used directly

All subjects read the same windows of the same files in the same random order, as RGB bytes of the
files' own size, each in a process of its own that ends before the next one starts; subjects take
turns over several rounds and the middle round is shown. Opening the files and finding out where
frames lie is not counted, the same for all. Each subject has `threads` threads that take windows;
inside, every decoder has one.

"right" is the share of frames that are nearer to the true frame (a whole decode by OpenCV, or by
PyAV where it is absent) than to any other within two of the window; "of" says how many could be
told apart, and "levels" by how much the right ones differ.

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
    timeout_s: float = 300.0


def measure_one(subject: str, job: dict[str, Any]) -> dict[str, float]:
    """Runs in a process of its own."""
    files, windows = job["files"], [(n, k) for n, k in job["windows"]]
    times = [np.array(t) for t in job["times"]]
    read = MAKERS[subject](files, times, job["frames"])
    with ThreadPoolExecutor(job["threads"]) as pool:
        warm = [(n, 0) for n in range(len(files)) for _ in range(job["threads"])]
        list(pool.map(read, warm))
        cpu, wall = cpu_s_used(), time.perf_counter()
        for _ in pool.map(lambda w: read(w).shape, windows):
            pass
        wall_s, cpu_s = time.perf_counter() - wall, cpu_s_used() - cpu
    checked = right(read, windows, files, job["frames"]) if job["check"] else {}
    return {"rate": len(windows) / wall_s, "CPU": 1000 * cpu_s / len(windows), **checked}


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
    case = f"{len(files)} files, {settings.frames} frames"
    found: dict[str, list[dict[str, float]]] = {subject: [] for subject in MAKERS}
    faults: dict[str, str] = {}
    for turn in range(settings.rounds):
        for subject in MAKERS:
            checked = {**job, "check": turn == 0}
            result, fault = apart(settings.timeout_s, measure_one, subject, checked)
            if fault:
                faults[subject] = fault
            else:
                found[subject].append(result)
    for subject in MAKERS:
        if fault := faults.get(subject):
            yield _row(case, subject, "rate", None, fault)
            continue
        rates = [result["rate"] for result in found[subject]]
        cpu = [result["CPU"] for result in found[subject]]
        yield _row(case, subject, "rate", statistics.median(rates), "windows/s")
        yield _row(case, subject, "lowest", min(rates), "windows/s")
        yield _row(case, subject, "highest", max(rates), "windows/s")
        yield _row(case, subject, "CPU", statistics.median(cpu), "ms/window")
        for metric, unit in (("right", "1"), ("of", "frames"), ("levels", "levels")):
            if metric in found[subject][0]:
                yield _row(case, subject, metric, found[subject][0][metric], unit)


def _row(case: str, subject: str, metric: str, value: float | None, unit: str) -> Row:
    return Row(
        benchmark="video_loader", case=case, subject=subject, metric=metric, value=value, unit=unit
    )
