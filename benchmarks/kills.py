"""Drivers of a curation that are killed at random instants, and what the next run makes of it."""

import contextlib
import hashlib
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.row import Row
from common.errors import ConfigError, VfmError

HELP = """
kill -9 of the driver at random instants: is the resumed run exact, and what does it do again?

Each of `kills` times a curation is started in a folder of its own, its driver is killed with
SIGKILL after a part of the time that a whole run takes, drawn at random, and the same command is
given again. What it wrote is compared with what a run wrote that nobody killed: shards,
indexes, manifest, tables, failed.jsonl. A finished piece of work (an analysis, a clip) counts as
redone where its record in the ledger is another afterwards.

Footage is drawn here, `videos` files of `clips` shots, or taken from input=DIR.

examples:
  vfm bench kills
  vfm bench kills executor=ray kills=5
  vfm bench kills input=videos seed=3 json=kills.json
"""

_RUN = "import sys; from cli.main import main; sys.exit(main())"
_SIZE = (320, 180)
_TIMES = ("wall_s", "stages", "bottleneck")


@dataclass(kw_only=True)
class Settings:
    input: str | None = None
    """A folder of videos; null draws some."""
    videos: int = 6
    clips: int = 3
    executor: str = "local"
    """local, ray."""
    kills: int = 20
    seed: int = 0


@dataclass(kw_only=True)
class Trial:
    killed: bool
    same: bool
    finished: int
    """Pieces of work that were recorded when the driver was killed."""
    redone: int
    resumed_s: float


def measure(settings: Settings) -> Iterator[Row]:
    if settings.executor not in ("local", "ray"):
        raise ConfigError(f"executor={settings.executor}: local or ray is needed")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(settings.input) if settings.input else _drawn(settings, Path(scratch) / "in")
        chance = random.Random(settings.seed)
        began = time.perf_counter()
        whole = Path(scratch) / "whole"
        _finish(settings, source, whole)
        length_s = time.perf_counter() - began
        expected = digests(whole)
        trials: list[Trial] = []
        # A run that ends before its instant is one more trial; it was not killed.
        while sum(t.killed for t in trials) < settings.kills and len(trials) < 3 * settings.kills:
            at_s = chance.uniform(0.0, length_s)
            output = Path(scratch) / f"{len(trials)}"
            trials.append(_trial(settings, source, output, expected, at_s))
    case = f"{settings.input or f'{settings.videos} drawn videos'}, seed {settings.seed}"

    def row(metric: str, value: float, unit: str) -> Row:
        return Row(
            benchmark="kills",
            case=case,
            subject=f"executor={settings.executor}",
            metric=metric,
            value=value,
            unit=unit,
        )

    yield row("drivers killed", sum(t.killed for t in trials), "1")
    yield row("trials", len(trials), "1")
    yield row("resumed to the same bytes", sum(t.same for t in trials), "1")
    yield row("other bytes", sum(not t.same for t in trials), "1")
    yield row("finished pieces at the kills", sum(t.finished for t in trials), "1")
    yield row("of them redone", sum(t.redone for t in trials), "1")
    yield row("whole run", length_s, "s")
    yield row("resumed run, median", statistics.median(t.resumed_s for t in trials), "s")


def _trial(
    settings: Settings, source: Path, output: Path, expected: dict[str, str], at_s: float
) -> Trial:
    driver = _start(settings, source, output)
    with contextlib.suppress(subprocess.TimeoutExpired):
        driver.wait(at_s)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    before = _recorded(output)
    began = time.perf_counter()
    _finish(settings, source, output)
    after = _recorded(output)
    return Trial(
        killed=driver.returncode == -signal.SIGKILL,
        same=digests(output) == expected,
        finished=len(before),
        redone=sum(after.get(work) != record for work, record in before.items()),
        resumed_s=time.perf_counter() - began,
    )


def _start(settings: Settings, source: Path, output: Path) -> "subprocess.Popen[str]":
    words = ["curate", f"input={source}", f"output={output}", f"executor={settings.executor}"]
    if settings.executor == "ray":
        words += ["ray.num_cpus=2", "ray.num_gpus=0", "ray.object_store_mib=80"]
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), *sys.path[1:]])
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _RUN, *words],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(settings: Settings, source: Path, output: Path) -> None:
    driver = _start(settings, source, output)
    _, errors = driver.communicate()
    if driver.returncode not in (0, 1):
        raise VfmError(f"vfm curate ended with {driver.returncode}: {errors.strip()[-500:]}")


def digests(output: Path) -> dict[str, str]:
    """All that must not depend on how often a run was killed."""
    files = [p for p in (output / "shards").rglob("*") if p.is_file()]
    files += [output / "clips.parquet", output / "videos.parquet"]
    found = {str(p.relative_to(output)): p.read_bytes() for p in sorted(files)}
    found["failed.jsonl"] = (
        (output / "failed.jsonl").read_bytes().replace(str(output).encode(), b"OUTPUT")
    )
    summary = json.loads((output / "summary.json").read_bytes())
    told = {name: value for name, value in summary.items() if name not in _TIMES}
    found["summary.json"] = json.dumps(told, sort_keys=True).encode()
    return {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}


def _recorded(output: Path) -> dict[tuple[str, ...], float]:
    """Each piece of work in the ledger, with the time that it took; doing it again changes that."""
    path = output / "ledger" / "ledger.sqlite"
    if not path.is_file():
        return {}
    with contextlib.closing(sqlite3.connect(path)) as database:
        try:
            rows = database.execute("SELECT content_id, span, stage, params, wall_s FROM work")
            return {tuple(row[:4]): row[4] for row in rows}
        except sqlite3.OperationalError:  # killed before it had made its tables
            return {}


def _drawn(settings: Settings, folder: Path) -> Path:
    """Videos of shots that move, and one file that is none."""
    import av
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

    folder.mkdir()
    width, height = _SIZE
    for number in range(settings.videos):
        with av.open(str(folder / f"v{number}.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=25, options={"preset": "veryfast"})
            assert isinstance(stream, VideoStream)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for clip in range(settings.clips):
                draw = np.random.default_rng([settings.seed, number, clip])
                small = draw.integers(0, 256, (height // 12, width // 3, 3), np.uint8)
                wide = np.kron(small, np.ones((12, 12, 1), np.uint8))
                for at in range(40):
                    picture = np.ascontiguousarray(wide[:height, 2 * at : 2 * at + width])
                    container.mux(stream.encode(VideoFrame.from_ndarray(picture, "rgb24")))
            container.mux(stream.encode(None))
    (folder / "words.mp4").write_text("no video " * 100)
    return folder
