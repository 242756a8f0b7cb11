"""Hard cuts found in footage whose cuts are known, by vfm and by PySceneDetect."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenedetect import AdaptiveDetector, ContentDetector, SceneDetector, open_video
from scenedetect.scene_manager import SceneManager

from benchmarks.row import Row
from curation.config import CurateConfig
from curation.sources import SourceFile, video_id_of
from curation.stages.analyse import Analyse, Analysis

HELP = """
hard cuts found in footage whose cuts are known, beside PySceneDetect's own defaults

The truth is a file {name: {"fps": float, "cuts_s": [...], "gradual_s": float | null, "tolerance_s":
float | null}}; files with gradual transitions are left out. A cut counts as found within the
tolerance, by default one frame. All subjects read the same files, one after another, in one
process; the times hold decoding too, in vfm's case also all its scores and thumbnails.

examples:
  vfm bench shots folder=footage truth=footage/truth.json
"""


@dataclass(kw_only=True)
class Settings:
    folder: str = "footage"
    truth: str = "footage/truth.json"


def ours(path: Path) -> list[float]:
    """Starts of clips after the first, where nothing is missing before them."""
    with tempfile.TemporaryDirectory() as scratch:
        stage = Analyse(CurateConfig(input="", output="", max_clip_s=1e6), Path(scratch))
        item = SourceFile(source=path.name, path=str(path), content_id=video_id_of(path))
        (analysis,) = stage.process(item)
    assert isinstance(analysis, Analysis), f"{path} was refused: {analysis}"
    return [clip.start_us / 1e6 for clip in analysis.clips[1:]]


def theirs(detector: Callable[[], SceneDetector]) -> Callable[[Path], list[float]]:
    def find(path: Path) -> list[float]:
        manager = SceneManager()
        manager.add_detector(detector())
        manager.detect_scenes(open_video(str(path), backend="pyav"))
        return [scene[0].seconds for scene in manager.get_scene_list()[1:]]

    return find


def score(
    found_s: Sequence[float], wanted_s: Sequence[float], tolerance_s: float
) -> tuple[int, int, int]:
    """Hits, false alarms, misses; each true cut is found at most once."""
    left = list(wanted_s)
    hits = 0
    for at in found_s:
        near = min(left, key=lambda cut: abs(cut - at), default=None)
        if near is not None and abs(near - at) <= tolerance_s:
            left.remove(near)
            hits += 1
    return hits, len(found_s) - hits, len(left)


def measure(settings: Settings) -> Iterator[Row]:
    folder = Path(settings.folder)
    truth: dict[str, Any] = json.loads(Path(settings.truth).read_text(encoding="utf-8"))
    subjects: dict[str, Callable[[Path], list[float]]] = {
        "vfm": ours,
        "PySceneDetect content": theirs(ContentDetector),
        "PySceneDetect adaptive": theirs(AdaptiveDetector),
    }
    for subject, find in subjects.items():
        total = [0, 0, 0]
        wall_s = 0.0
        for name, about in truth.items():
            if about["gradual_s"]:
                continue
            begin = time.perf_counter()
            found_s = find(folder / name)
            wall_s += time.perf_counter() - begin
            tolerance_s = about.get("tolerance_s") or 1 / about["fps"] + 1e-3
            counts = score(found_s, about["cuts_s"], tolerance_s)
            total = [a + b for a, b in zip(total, counts, strict=True)]
            yield from _metrics(name, subject, counts)
        yield from _metrics("all", subject, total)
        yield _row("all", subject, "wall", wall_s, "s")


def _metrics(case: str, subject: str, counts: Sequence[int]) -> list[Row]:
    hits, false, missed = counts
    f1 = 2 * hits / max(1, 2 * hits + false + missed)
    return [
        _row(case, subject, "F1", f1, "1"),
        _row(case, subject, "false", false, "cuts"),
        _row(case, subject, "missed", missed, "cuts"),
    ]


def _row(case: str, subject: str, metric: str, value: float, unit: str) -> Row:
    return Row(benchmark="shots", case=case, subject=subject, metric=metric, value=value, unit=unit)
