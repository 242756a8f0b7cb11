"""The memory that one worker of a curation takes: for large pictures, and for long videos."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.curate import repeat
from benchmarks.row import Row

HELP = """
peak memory of a worker of each stage: 4K pictures, and long videos beside short ones

Each stage runs alone in a process of its own, as a worker does, over one video that is drawn here;
its peak is that of the kernel (VmHWM), with all that it imports. Long videos are the same packets
over and over, so that the pictures are the same and only their number grows.

  4K             3840 x 2160, `seconds_4k`, H.264; `threads` decoder threads (0: one a core)
  short, long    320 x 180, `short_s` and `long_s` seconds, and how much more the long one needs

Encoded are clips of two seconds, one in every `every_s`. Aimed at are 2 GiB for 4K, and 5 % more
for two hours than for ten minutes.

examples:
  vfm bench memory
  vfm bench memory short_s=60 long_s=600
  vfm bench memory json=memory.json
"""

_LOOP_S = 20.0
_STAGES = ("ingest", "analyse", "transcode")


@dataclass(kw_only=True)
class Settings:
    seconds_4k: float = 8.0
    short_s: float = 600.0
    long_s: float = 7200.0
    fps: int = 24
    threads: int = 0
    every_s: float = 300.0
    """One clip is encoded in so many seconds."""


def measure(settings: Settings) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        large = _drawn(folder / "4k.mp4", (3840, 2160), settings.fps, settings.seconds_4k)
        loop = _drawn(folder / "loop.mp4", (320, 180), settings.fps, _LOOP_S)
        short, long = folder / "short.mp4", folder / "long.mp4"
        repeat(str(loop), str(short), round(settings.short_s / _LOOP_S))
        repeat(str(loop), str(long), round(settings.long_s / _LOOP_S))
        for stage in _STAGES:
            peak = _peak_mib(stage, large, settings)
            yield _row(f"4K, {settings.seconds_4k:g} s", stage, "peak", peak, "MiB")
        for stage in _STAGES:
            few, many = (_peak_mib(stage, path, settings) for path in (short, long))
            yield _row(f"{settings.short_s:g} s", stage, "peak", few, "MiB")
            yield _row(f"{settings.long_s:g} s", stage, "peak", many, "MiB")
            yield _row(
                f"{settings.long_s:g} s", stage, "more than the short one", many / few - 1, "1"
            )


def _peak_mib(stage: str, path: Path, settings: Settings) -> float:
    """The peak of a process that imports what a worker does and takes one item."""
    words = [f"{key}={value}" for key, value in asdict(settings).items()]
    code = "import sys; from benchmarks.memory import worker; worker(*sys.argv[1:])"
    run = [sys.executable, "-P", "-c", code, stage, str(path), *words]
    root = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=_env(root))
    if done.returncode:
        raise RuntimeError(f"{stage} of {path.name}: {done.stderr.strip()[-500:]}")
    return int(done.stdout.split()[-1]) / 1024


def _env(root: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": root}


def worker(stage_name: str, path: str, *words: str) -> None:
    """Prints the peak of this process in KiB once a stage has done its item."""
    from curation.config import AnalysisConfig, CurateConfig
    from curation.executors.attempt import attempt
    from curation.sources import SourceFile
    from curation.stage import Failure, Item, Stage
    from curation.stages.analyse import Analyse
    from curation.stages.ingest import Ingest
    from curation.stages.transcode import Transcode

    told = dict(word.split("=") for word in words)
    analysis = AnalysisConfig(threads=int(told["threads"]))
    with tempfile.TemporaryDirectory() as scratch:
        config = CurateConfig(input=path, output=scratch, analysis=analysis)
        item: Item = SourceFile(source=path, path=path, content_id="0" * 16)
        stage: Stage = Analyse(config, Path(scratch))
        if stage_name == "ingest":
            stage = Ingest(retries=0)
            item = SourceFile(source=path, path=path)
        elif stage_name == "transcode":
            stage = Transcode(config.transcode, Path(scratch), retries=0)
            item = _orders(path, float(told["every_s"]), int(told["threads"]))
        stage.setup()
        for result in attempt(stage, item):
            assert not isinstance(result, Failure), result.detail
    status = Path("/proc/self/status").read_text()
    print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def _orders(path: str, every_s: float, num_threads: int) -> Any:
    """Clips of two seconds, from the start to the end of a video."""
    from common.media import VideoReader
    from curation.stages.transcode import ClipOrder, SourceOrder

    with VideoReader(path) as reader:
        info = reader.info
    starts = np.arange(0.0, info.duration_s - 2.0, every_s)
    clips = [
        ClipOrder(
            clip_id=f"{'0' * 16}-{number:09d}",
            content_id="0" * 16,
            start_us=round(start * 1e6),
            end_us=round((start + 2.0) * 1e6),
            num_frames=round(2.0 * info.fps),
            width=info.width,
            height=info.height,
        )
        for number, start in enumerate(starts)
    ]
    return SourceOrder(
        content_id="0" * 16, source=path, path=path, clips=clips, num_threads=num_threads
    )


def _drawn(path: Path, size: tuple[int, int], fps: int, seconds: float) -> Path:
    """Shots of two seconds of a picture that moves."""
    import av
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

    width, height = size
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps, options={"preset": "ultrafast"})
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.gop_size = 2 * fps
        for shot in range(round(seconds / 2)):
            draw = np.random.default_rng(shot)
            small = draw.integers(0, 256, (height // 20, width // 10, 3), np.uint8)
            wide = np.kron(small, np.ones((20, 20, 1), np.uint8))
            for at in range(2 * fps):
                picture = np.ascontiguousarray(wide[:height, at : at + width])
                container.mux(stream.encode(VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode(None))
    return path


def _row(case: str, subject: str, metric: str, value: float, unit: str) -> Row:
    return Row(
        benchmark="memory", case=case, subject=subject, metric=metric, value=value, unit=unit
    )
