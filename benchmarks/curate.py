"""What the analysis of footage costs, beside its parts alone and beside shot detection alone."""

import concurrent.futures
import contextlib
import itertools
import math
import multiprocessing
import re
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from benchmarks import _drawn_shots, _made_scenes
from benchmarks.row import Row
from common.errors import ConfigError
from common.media import VideoReader

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

The whole pipeline also tells seconds of video per core-second. Memory is the peak of the process.
Whether it grows with the length of a video is measured on a copy of 360 lines, its packets repeated
to `memory_s` seconds and to `longer` times as many.

Without `video` one is rendered: five scenes of three seconds, 1080p, 30 frames a second.

examples:
  vfm bench curate
  vfm bench curate video=footage/cuts_1080p.mp4
  vfm bench curate video=footage/cuts_1080p.mp4 rounds=5 json=curate.json
"""

_PROXY_HEIGHT = 360


@dataclass(kw_only=True)
class Settings:
    video: str = ""
    rounds: int = 3
    threads: int = 1
    memory_s: float = 70.0
    """More than the minute that shot detection looks back over."""
    longer: int = 10
    """0 leaves out how memory grows."""


class Cost(NamedTuple):
    cpu_s: float
    wall_s: float
    peak_mib: float
    video_s: float


def measure(settings: Settings) -> Iterator[Row]:
    if settings.video and not Path(settings.video).is_file():
        raise ConfigError(
            f"video={settings.video}: there is no such file; give one, or none to render one"
        )
    with tempfile.TemporaryDirectory() as scratch:
        path = settings.video or render(Path(scratch) / "rendered.mp4")
        yield from _costs(path, settings)
        if settings.longer > 1:
            yield from _growth(path, settings, Path(scratch))


def _costs(path: str, settings: Settings) -> Iterator[Row]:
    case, threads = Path(path).name, settings.threads
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


def _growth(path: str, settings: Settings, scratch: Path) -> Iterator[Row]:
    name, threads = "shots + scores + text", settings.threads
    small, repeated = str(scratch / "small.mp4"), str(scratch / "repeated.mp4")
    shrink(path, small, threads)
    with VideoReader(small) as reader:
        times = math.ceil(settings.memory_s / reader.info.duration_s)
    peaks: list[Cost] = []
    for count in (times, times * settings.longer):
        repeat(small, repeated, count)
        cost = alone(SUBJECTS[name], repeated, threads)
        peaks.append(cost)
        case = f"{Path(path).name}, 360p, {cost.video_s:.0f} s"
        yield _row(case, name, "CPU", cost.cpu_s, "s")
        yield _row(case, name, "peak memory", cost.peak_mib, "MiB")
    more = (peaks[1].peak_mib - peaks[0].peak_mib) * 2**20
    grown = more / (peaks[1].video_s - peaks[0].video_s)
    yield _row(case, name, "grown per second", grown, "bytes")


def alone(run: Callable[[str, int], float], path: str, threads: int) -> Cost:
    """One run in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measured, run, path, threads).result()


def _measured(run: Callable[[str, int], float], path: str, threads: int) -> Cost:
    _import_all()
    _forget_peak()
    before, began = _cpu_s(), time.perf_counter()
    video_s = run(path, threads)
    wall_s, cpu_s = time.perf_counter() - began, _cpu_s() - before
    return Cost(cpu_s=cpu_s, wall_s=wall_s, peak_mib=_peak_mib(), video_s=video_s)


def _forget_peak() -> None:
    """The peak of a process begins with that of the one which started it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_mib() -> float:
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if found is not None:
            return int(found[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


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
    with tempfile.TemporaryDirectory() as scratch:
        small = str(Path(scratch) / "proxy.mp4")
        shrink(path, small, threads)
        return _analysed(small, threads, text=False)


def shrink(path: str, target: str, threads: int) -> None:
    """A copy of 360 lines, made as fast as x264 can."""
    import av

    with av.open(path) as source, av.open(target, "w") as made:
        stream = source.streams.video[0]
        stream.codec_context.thread_count = threads
        assert stream.time_base is not None
        width = round(stream.width * _PROXY_HEIGHT / stream.height / 2) * 2
        small = made.add_stream("libx264", rate=stream.average_rate)
        small.width, small.height, small.pix_fmt = width, _PROXY_HEIGHT, "yuv420p"
        small.options = {"preset": "ultrafast", "threads": str(threads)}
        small.codec_context.time_base = stream.time_base
        for frame in source.decode(stream):
            scaled = frame.reformat(width, _PROXY_HEIGHT, "yuv420p")
            scaled.pts, scaled.time_base = frame.pts, frame.time_base
            made.mux(small.encode(scaled))
        made.mux(small.encode(None))


def render(path: Path) -> str:
    """Five scenes that are drawn, and cuts between them."""
    plan = _drawn_shots.Drawn(rate=Fraction(30), size=(1920, 1080), crf=23)
    for number in range(5):
        shot = _drawn_shots.Shot(
            source=number, begin_s=1.0, num_frames=90, trouble="none", seed=number
        )
        plan.shots.append(shot)
        plan.frames += [[(number, frame, 1.0)] for frame in range(shot.num_frames)]
    _drawn_shots.write(path, plan, {number: _made_scenes.scene(number) for number in range(5)})
    return str(path)


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
