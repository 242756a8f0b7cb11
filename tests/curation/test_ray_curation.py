"""`vfm curate executor=ray` beside `executor=local`: the same bytes, resumed after kills of the
driver too (real processes, real footage where there is some; no GPU)."""

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curation.config import CurateConfig, ReshardConfig
from curation.engine.sight import Sight
from curation.executors.config import RayConfig
from curation.executors.ray import RayExecutor
from curation.pipeline import Graph, Memory
from curation.refilter import reshard
from curation.run import curate
from curation.stage import Item
from tests.curation import footage

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from curation.config import CurateConfig
from curation.executors.config import RayConfig
from curation.run import curate
ray = RayConfig(num_cpus=2, num_gpus=0, object_store_mib=80)
config = CurateConfig(input=sys.argv[1], output=sys.argv[2], executor="ray", ray=ray)
sys.exit(curate(config).exit_code)
"""


def digests(output: Path) -> dict[str, str]:
    """All that must be the same, whoever did the work."""
    files = [p for p in (output / "shards").rglob("*") if p.is_file()]
    files += [output / "clips.parquet", output / "videos.parquet"]
    return {
        str(p.relative_to(output)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(files)
        if p.name != "index.sqlite-journal"
    }


def videos(folder: Path) -> Path:
    for number in range(5):
        shots = [footage.shot(10 * number + k, 25, size=(256, 144)) for k in range(3)]
        footage.write(folder / f"v{number}.mp4", np.concatenate(shots))
    (folder / "bad.mp4").write_bytes(b"no video at all" * 100)
    (folder / "twin.mp4").write_bytes((folder / "v1.mp4").read_bytes())
    return folder


def test_the_same_bytes_whoever_is_killed(tmp_path: Path) -> None:
    """One driver is killed once scoring has begun, the next does what is missing."""
    source = videos(tmp_path / "in")
    here = curate(CurateConfig(input=str(source), output=str(tmp_path / "here")))
    output = tmp_path / "there"
    words = [sys.executable, "-c", SCRIPT, str(source), str(output)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    thumbs = output / "report" / "thumbs"
    deadline = time.monotonic() + 120
    while not (thumbs.is_dir() and any(thumbs.rglob("*.jpg"))):
        assert driver.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    again = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=200)
    assert again.returncode == here.exit_code == 1, again.stderr
    assert digests(output) == digests(tmp_path / "here")
    assert (output / "report" / "engine.jsonl").read_text().count("decision") >= 2
    nothing = curate(
        CurateConfig(
            input=str(source), output=str(output), executor="ray", ray=RayConfig(address="nowhere")
        )
    )
    assert nothing.exit_code == 1, "where nothing is left to do, no cluster is needed"


class _Sized:
    """Ray with the same number of workers for every stage; `LocalExecutor` never has but one."""

    def __init__(self, ray: RayExecutor, num: int) -> None:
        self._ray = ray
        self._num = num

    @property
    def workers(self) -> Mapping[str, int]:
        return self._ray.workers

    @property
    def sight(self) -> Sight:
        return self._ray.sight

    def run(
        self, graph: Graph, items: Iterable[Item], memory: Memory, *, total: int | None = None
    ) -> Iterator[Any]:
        steps = [dataclasses.replace(s, workers=self._num) for s in graph.steps.values()]
        return self._ray.run(Graph(steps), items, memory, total=total)


def told(output: Path) -> tuple[dict[str, Any], str]:
    """The summary apart from times, and the failures with the output's name taken out."""
    summary = json.loads((output / "summary.json").read_text())
    for key in ("wall_s", "stages", "bottleneck"):
        del summary[key]
    return summary, (output / "failed.jsonl").read_text().replace(str(output), "OUTPUT")


def test_one_worker_and_two_give_the_same_bytes(tmp_path: Path) -> None:
    source = videos(tmp_path / "in")
    curate(CurateConfig(input=str(source), output=str(tmp_path / "0")))
    config = RayConfig(num_cpus=4, num_gpus=0, object_store_mib=80)
    with RayExecutor(config) as ray:
        for num in (1, 2):
            output = tmp_path / str(num)
            curate(CurateConfig(input=str(source), output=str(output)), executor=_Sized(ray, num))
            assert ray.workers == {"ingest": num, "analyse": num, "transcode": num}
            assert digests(output) == digests(tmp_path / "0")
            assert told(output) == told(tmp_path / "0")
        spans = tmp_path / "spans"
        curate(CurateConfig(input=str(source), output=str(spans), encode=False))
        reshard(ReshardConfig(folder=str(spans)), executor=_Sized(ray, 2))
        assert digests(spans) == digests(tmp_path / "0")
    assert sum(name.endswith(".tar") for name in digests(tmp_path / "0")) >= 1


@pytest.mark.parametrize("part", ["clips"])
def test_real_footage_gives_the_same_bytes(tmp_path: Path, part: str) -> None:
    folder = footage.real_footage(part)
    ray = RayConfig(num_cpus=2, num_gpus=0, object_store_mib=80)
    codes = []
    for executor in ("local", "ray"):
        config = CurateConfig(
            input=str(folder), output=str(tmp_path / executor), executor=executor, ray=ray
        )
        codes.append(curate(config).exit_code)
    assert codes[0] == codes[1]
    assert digests(tmp_path / "local") == digests(tmp_path / "ray")
