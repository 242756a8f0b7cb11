"""What the analysis of footage costs, beside its parts alone and beside shot detection alone."""

import concurrent.futures
import itertools
import multiprocessing
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.row import Row
from common.errors import ConfigError

HELP = """
CPU time of shot detection with all scores, beside shot detection alone

Each run is a process of its own; its imports do not count. Subjects take turns, `rounds` times, and
the medians are shown with the spread. All decode with `threads` threads; OpenCV uses its own.

  decode                    PyAV, every picture, nothing else
  detect-content            PySceneDetect's default detector, over PyAV and over OpenCV
  shots + scores            one decode for all, without text
  shots + scores + text     the same with the text detector
  360p proxy first          the proxy is encoded (x264, ultrafast), then shots + scores of it
  whole pipeline            vfm curate, to shards

The whole pipeline also tells seconds of video per core-second. Memory is the peak of the process
for the video as it is and for one `longer` times as long, its packets repeated.

examples:
  vfm bench curate video=footage/cuts_1080p.mp4
  vfm bench curate video=footage/cuts_1080p.mp4 rounds=5 json=curate.json
"""

_PROXY_HEIGHT = 360


@dataclass(kw_only=True)
class Settings:
    video: str = "footage/cuts_1080p.mp4"
    rounds: int = 3
    threads: int = 1
    longer: int = 10
    """How many times as long the video for the peak of memory is; 0 leaves that out."""


class Cost(NamedTuple):
    cpu_s: float
    wall_s: float
    peak_mib: float
    video_s: float


def measure(settings: Settings) -> Iterator[Row]:
    if not Path(settings.video).is_file():
        raise ConfigError(f"video={settings.video}: there is no such file; give one, video=FILE")
    path, threads = settings.video, settings.threads
    case = Path(path).name
    costs: dict[str, list[Cost]] = {name: [] for name in SUBJECTS}
    for _ in range(settings.rounds):
        for name, run in SUBJECTS.items():
            costs[name].append(alone(run, path, threads))
    reference = statistics.median(c.cpu_s for c in costs["detect-content (PyAV)"])
    for name, found in costs.items():
        cpu_s = [c.cpu_s for c in found]
        yield _row(case, name, "CPU", statistics.median(cpu_s), "s")
        yield _row(case, name, "spread", max(cpu_s) - min(cpu_s), "s")
        yield _row(case, name, "to detect-content", statistics.median(cpu_s) / reference, "1")
        rate = statistics.median(c.video_s / c.cpu_s for c in found)
        yield _row(case, name, "video per core-second", rate, "s")
        yield _row(case, name, "peak memory", statistics.median(c.peak_mib for c in found), "MiB")
    if settings.longer > 1:
        name = "shots + scores + text"
        with tempfile.TemporaryDirectory() as scratch:
            long = str(Path(scratch) / f"long{Path(path).suffix}")
            repeat(path, long, settings.longer)
            cost = alone(SUBJECTS[name], long, threads)
        yield _row(f"{case}, {settings.longer} times", name, "CPU", cost.cpu_s, "s")
        yield _row(f"{case}, {settings.longer} times", name, "peak memory", cost.peak_mib, "MiB")


def alone(run: Callable[[str, int], float], path: str, threads: int) -> Cost:
    """One run in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measured, run, path, threads).result()


def _measured(run: Callable[[str, int], float], path: str, threads: int) -> Cost:
    _import_all()
    before, began = _cpu_s(), time.perf_counter()
    video_s = run(path, threads)
    wall_s, cpu_s = time.perf_counter() - began, _cpu_s() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Cost(cpu_s=cpu_s, wall_s=wall_s, peak_mib=peak, video_s=video_s)


def _import_all() -> None:
    import av
    import onnxruntime
    import scenedetect

    import curation.run

    del av, onnxruntime, scenedetect, curation


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def decode(path: str, threads: int) -> float:
    import av

    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        stream.codec_context.thread_count = threads
        end_s = 0.0
        for frame in container.decode(stream):
            end_s = max(end_s, frame.time or 0.0)
    return end_s


def content_pyav(path: str, threads: int) -> float:
    from scenedetect import ContentDetector, SceneManager
    from scenedetect.backends.pyav import VideoStreamAv

    video = VideoStreamAv(path, threading_mode="AUTO" if threads != 1 else None)
    manager = SceneManager()
    manager.add_detector(ContentDetector())
    manager.detect_scenes(video)
    return video.position.seconds


def content_opencv(path: str, threads: int) -> float:
    from scenedetect import ContentDetector, SceneManager, open_video

    video = open_video(path, backend="opencv")
    manager = SceneManager()
    manager.add_detector(ContentDetector())
    manager.detect_scenes(video)
    return video.position.seconds


def classic(path: str, threads: int) -> float:
    return _analysed(path, threads, text=False)


def with_text(path: str, threads: int) -> float:
    return _analysed(path, threads, text=True)


def proxy(path: str, threads: int) -> float:
    """A small copy first, which costs a second decode and an encode."""
    import av

    with tempfile.TemporaryDirectory() as scratch:
        small = str(Path(scratch) / "proxy.mp4")
        with av.open(path) as source, av.open(small, "w") as target:
            stream = source.streams.video[0]
            stream.codec_context.thread_count = threads
            assert stream.time_base is not None
            width = round(stream.width * _PROXY_HEIGHT / stream.height / 2) * 2
            made = target.add_stream("libx264", rate=stream.average_rate)
            made.width, made.height, made.pix_fmt = width, _PROXY_HEIGHT, "yuv420p"
            made.options = {"preset": "ultrafast", "threads": str(threads)}
            made.codec_context.time_base = stream.time_base
            for frame in source.decode(stream):
                scaled = frame.reformat(width, _PROXY_HEIGHT, "yuv420p")
                scaled.pts, scaled.time_base = frame.pts, frame.time_base
                target.mux(made.encode(scaled))
            target.mux(made.encode(None))
        return _analysed(small, threads, text=False)


def whole(path: str, threads: int) -> float:
    from curation.config import AnalysisConfig, CurateConfig, TranscodeConfig
    from curation.run import curate

    with tempfile.TemporaryDirectory() as scratch:
        config = CurateConfig(
            input=path,
            output=str(Path(scratch) / "out"),
            analysis=AnalysisConfig(threads=threads),
            transcode=TranscodeConfig(threads=max(1, threads)),
        )
        return curate(config).summary["seconds_in"]


def _analysed(path: str, threads: int, *, text: bool) -> float:
    from curation.config import AnalysisConfig, CurateConfig
    from curation.sources import SourceFile, video_id_of
    from curation.stages.analyse import Analyse, Analysis

    scratch = tempfile.mkdtemp()
    try:
        analysis = AnalysisConfig(threads=threads, text=text)
        stage = Analyse(CurateConfig(input="", output="", analysis=analysis), Path(scratch))
        item = SourceFile(source=path, path=path, content_id=video_id_of(Path(path)))
        (found,) = stage.process(item)
    finally:
        shutil.rmtree(scratch)
    assert isinstance(found, Analysis), f"{path} was refused: {found}"
    return found.duration_us / 1e6


def repeat(path: str, target: str, times: int) -> None:
    """The same packets several times over, one stretch after the other."""
    import av

    with av.open(path) as source, av.open(target, "w") as made:
        stream = source.streams.video[0]
        copy = made.add_stream_from_template(stream)
        span = 0
        for number in range(times):
            source.seek(0)
            for packet in itertools.takewhile(lambda p: p.dts is not None, source.demux(stream)):
                assert packet.pts is not None and packet.dts is not None
                if not number:
                    span = max(span, packet.pts + (packet.duration or 1))
                packet.pts, packet.dts = packet.pts + number * span, packet.dts + number * span
                packet.stream = copy
                made.mux(packet)


SUBJECTS: dict[str, Callable[[str, int], float]] = {
    "decode (PyAV)": decode,
    "detect-content (PyAV)": content_pyav,
    "detect-content (OpenCV)": content_opencv,
    "shots + scores": classic,
    "shots + scores + text": with_text,
    "360p proxy first": proxy,
    "whole pipeline": whole,
}


def _row(case: str, subject: str, metric: str, value: float, unit: str) -> Row:
    return Row(
        benchmark="curate", case=case, subject=subject, metric=metric, value=value, unit=unit
    )
