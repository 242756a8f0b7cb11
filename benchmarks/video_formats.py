"""Training frames stored as video, JPEG and PNG: space, quality, and what loading them costs."""

import math
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._apart import apart, cpu_s_used
from benchmarks._video_readers import MAKERS, frame_times, pictures, right
from benchmarks.row import Row
from common.errors import ConfigError

HELP = """
frames for training kept as video, as JPEG and as PNG: NVIDIA's measures for NVVL

space    bytes of the same frames as PNG, as JPEG, and as H.264 and HEVC with a key frame every
         `intervals` frames, and their PSNR against the frames given, over all values of all frames
load     random windows from H.264 (CRF 18) with a key frame every `intervals` frames, by vfm, by
         PyAV, OpenCV and torchcodec used directly, and from JPEG and PNG files through Pillow. All
         have the same `threads`, two batches read ahead, and a step that takes `step_ms`:
         overhead   wall time that a step waits for its batch, median
         load       processor time over wall time
         memory     highest resident memory of the process less that before the first window
         right      share of frames that are the ones asked for, by a decode of the whole file with
                    OpenCV's FFmpeg; "of" how many could be told apart; "levels" their difference

The first `num_frames` frames of each file are taken, at the file's own size. Each subject runs in a
process of its own; subjects take turns over the rounds.

examples:
  vfm bench video_formats files=[a.mp4,b.mp4]
  vfm bench video_formats files=[a.mp4,b.mp4] cases=[space] num_frames=48
"""

IMAGES = ("JPEG", "PNG")


@dataclass(kw_only=True)
class Settings:
    files: list[str] = field(default_factory=list)
    cases: list[str] = field(default_factory=lambda: ["space", "load"])
    num_frames: int = 96
    intervals: list[int] = field(default_factory=lambda: [8, 16, 32, 250])
    crf: list[int] = field(default_factory=lambda: [12, 18, 24, 30])
    """Of the videos whose space is measured; those that are loaded have 18."""
    window: int = 5
    batch_size: int = 8
    steps: int = 20
    step_ms: float = 100.0
    threads: int = 2
    rounds: int = 1
    timeout_s: float = 100.0


def measure(settings: Settings) -> Iterator[Row]:
    if not settings.files:
        raise ConfigError("files is empty; for example: vfm bench video_formats files=[a.mp4]")
    clips = [frames_of(name, settings.num_frames) for name in settings.files]
    with tempfile.TemporaryDirectory(prefix="bench-formats-") as name:
        root = Path(name)
        if "space" in settings.cases:
            yield from _space(settings, clips, root)
        if "load" in settings.cases:
            yield from _load(settings, clips, root)


def frames_of(file: str, most: int) -> np.ndarray:
    """`uint8 [T, H, W, 3]`, with even sides."""
    import av

    frames = []
    with av.open(file) as container:
        for frame in container.decode(video=0):
            frames.append(frame.to_ndarray(format="rgb24"))
            if len(frames) == most:
                break
    whole = np.stack(frames)
    return whole[:, : whole.shape[1] // 2 * 2, : whole.shape[2] // 2 * 2]


def _space(settings: Settings, clips: list[np.ndarray], root: Path) -> Iterator[Row]:
    forms: list[tuple[str, str, Callable[[np.ndarray, Path], np.ndarray]]] = [
        ("space", "PNG", lambda clip, path: store_images(clip, path, "png", 0))
    ]
    for quality in (50, 75, 90, 95):
        named = f"JPEG, quality {quality}"
        forms.append(("space", named, lambda c, p, q=quality: store_images(c, p, "jpg", q)))
    for interval in settings.intervals:
        case = f"space, key frame every {interval}"
        for codec, named in (("libx264", "H.264"), ("libx265", "HEVC")):
            for crf in settings.crf:
                store = partial(stored_video, codec=codec, crf=crf, interval=interval)
                forms.append((case, f"{named}, CRF {crf}", store))
    png_bytes = 0
    for case, subject, store in forms:
        num_bytes, squares, values = 0, 0.0, 0
        for i, clip in enumerate(clips):
            folder = root / "space"
            folder.mkdir(exist_ok=True)
            kept = store(clip, folder / f"{i}")
            num_bytes += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            squares += float(np.square(kept.astype(np.float32) - clip).sum(dtype=np.float64))
            values += clip.size
            for path in folder.rglob("*.*"):
                path.unlink()
        png_bytes = png_bytes or num_bytes
        frames = sum(map(len, clips))
        yield _row(case, subject, "space", num_bytes / frames / 1024, "KiB/frame")
        yield _row(case, subject, "less than PNG", png_bytes / num_bytes, "times")
        if squares:
            yield _row(case, subject, "PSNR", 10 * math.log10(255**2 * values / squares), "dB")


def store_images(clip: np.ndarray, folder: Path, suffix: str, quality: int) -> np.ndarray:
    """Writes a file for each frame; gives what they hold."""
    from PIL import Image

    folder.mkdir(exist_ok=True)
    options: dict[str, Any] = {"quality": quality} if suffix == "jpg" else {}
    for i, frame in enumerate(clip):
        Image.fromarray(frame).save(folder / f"{i:05d}.{suffix}", **options)
    return np.stack([np.asarray(Image.open(p)) for p in sorted(folder.glob(f"*.{suffix}"))])


def stored_video(
    clip: np.ndarray, path: Path, *, codec: str, crf: int, interval: int
) -> np.ndarray:
    """Writes a video; gives what it holds."""
    store_video(clip, path.with_suffix(".mp4"), codec, crf, interval)
    return frames_of(str(path.with_suffix(".mp4")), len(clip))


def store_video(clip: np.ndarray, path: Path, codec: str, crf: int, interval: int) -> None:
    import av

    options = {"crf": str(crf), "preset": "medium", "g": str(interval), "sc_threshold": "0"}
    if codec == "libx265":
        options = {"crf": str(crf), "x265-params": f"log-level=none:keyint={interval}"}
    with av.open(str(path), "w") as out:
        stream: Any = out.add_stream(codec, rate=25, options=options)
        stream.height, stream.width = clip.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in clip:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        out.mux(stream.encode(None))


def _load(settings: Settings, clips: list[np.ndarray], root: Path) -> Iterator[Row]:
    long = [i for i, clip in enumerate(clips) if len(clip) >= settings.window]
    if not long:
        raise ConfigError(f"window={settings.window} is longer than every file")
    draw = random.Random(0)
    windows = []
    for _ in range(settings.steps * settings.batch_size):
        number = draw.choice(long)
        windows.append((number, draw.randrange(len(clips[number]) - settings.window + 1)))
    jobs: list[tuple[str, str, dict[str, Any]]] = []
    common = {
        "windows": windows,
        "frames": settings.window,
        "batch": settings.batch_size,
        "step_s": settings.step_ms / 1000,
        "threads": settings.threads,
    }
    for interval in settings.intervals:
        files = [str(root / f"{i}-{interval}.mp4") for i in range(len(clips))]
        for clip, file in zip(clips, files, strict=True):
            store_video(clip, Path(file), "libx264", 18, interval)
        times = [frame_times(file).tolist() for file in files]
        for subject in MAKERS:
            case = f"key frame every {interval}"
            jobs.append((case, subject, {**common, "files": files, "times": times}))
    for subject, suffix in zip(IMAGES, ("jpg", "png"), strict=True):
        folders = [str(root / f"{i}-{suffix}") for i in range(len(clips))]
        for clip, folder in zip(clips, folders, strict=True):
            store_images(clip, Path(folder), suffix, 95)
        jobs.append(("frames as files", subject, {**common, "files": folders, "times": []}))
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    faults: dict[tuple[str, str], str] = {}
    for _ in range(settings.rounds):
        for case, subject, job in jobs:
            result, fault = apart(settings.timeout_s, load_one, subject, job)
            if fault:
                faults[case, subject] = fault
            else:
                found.setdefault((case, subject), []).append(result)
    for case, subject, _ in jobs:
        if fault := faults.get((case, subject)):
            yield _row(case, subject, "overhead", None, fault)
            continue
        for metric, unit in _METRICS.items():
            values = [r[metric] for r in found[case, subject] if metric in r]
            if values:
                yield _row(case, subject, metric, statistics.median(values), unit)


_METRICS = {
    "overhead": "ms/step",
    "load": "processors",
    "CPU": "ms/window",
    "memory": "MiB",
    "right": "1",
    "of": "frames",
    "levels": "levels",
}


def load_one(subject: str, job: dict[str, Any]) -> dict[str, float]:
    """Runs in a process of its own."""
    times = [np.array(t) for t in job["times"]]
    read = MAKERS.get(subject, pictures)(job["files"], times, job["frames"])
    windows = [(number, first) for number, first in job["windows"]]
    read(windows[0])
    before = _resident_mib()
    highest = before
    waits = []
    batches = [windows[i : i + job["batch"]] for i in range(0, len(windows), job["batch"])]
    cpu, wall = cpu_s_used(), time.perf_counter()
    with ThreadPoolExecutor(job["threads"]) as pool:
        ahead: deque[list[Future[np.ndarray]]] = deque()
        upcoming = iter(batches)
        for _ in batches:
            while len(ahead) < 3 and (batch := next(upcoming, None)) is not None:
                ahead.append([pool.submit(read, window) for window in batch])
            begin = time.perf_counter()
            frames = np.stack([future.result() for future in ahead.popleft()])
            waits.append(time.perf_counter() - begin)
            highest = max(highest, _resident_mib())
            assert frames.shape[:2] == (job["batch"], job["frames"])
            time.sleep(job["step_s"])
    cpu_s, wall_s = cpu_s_used() - cpu, time.perf_counter() - wall
    made = {
        # The first batch was not read ahead of anything.
        "overhead": 1000 * statistics.median(waits[1:]),
        "load": cpu_s / wall_s,
        "CPU": 1000 * cpu_s / len(windows),
        "memory": highest - before,
    }
    if times:
        made |= right(read, windows, job["files"], job["frames"])
    return made


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def _row(case: str, subject: str, metric: str, value: float | None, unit: str) -> Row:
    return Row(
        benchmark="video_formats", case=case, subject=subject, metric=metric, value=value, unit=unit
    )
