"""A run that is killed at any instant and begun again ends as if nothing had happened.

Real processes, killed with SIGKILL. No network, no GPU; footage is made here.
"""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from common.errors import VfmError
from curation.config import CurateConfig
from curation.ledger import only_driver
from curation.run import curate
from tests.curation import footage

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, signal, sys
from curation.config import CurateConfig, ShardConfig
from curation.decisions import BlurConfig
from curation.run import curate
config = CurateConfig(
    input=sys.argv[1], output=sys.argv[2], blur=BlurConfig(min=None),
    shard=ShardConfig(target_bytes=60_000),
)
if len(sys.argv) > 3:
    # Dies right before the record of that number among those of encoded clips.
    from curation.ledger import Ledger
    record, left = Ledger.record, [int(sys.argv[3])]
    def mortal(self, content_id, span, stage, *rest):
        left[0] -= stage == "transcode"
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        record(self, content_id, span, stage, *rest)
    Ledger.record = mortal
print("begin", flush=True)
sys.exit(curate(config).exit_code)
"""


def _videos(folder: Path, count: int = 4) -> Path:
    for number in range(count):
        shots = [footage.shot(10 * number + k, 25, size=(256, 144)) for k in range(3)]
        footage.write(folder / f"v{number}.mp4", np.concatenate(shots))
    # Pictures after a seek are others than those of a read from the start on.
    shots = [footage.shot(k, n, size=(256, 144)) for k, n in enumerate((47, 47, 30))]
    options = {"x264-params": "intra-refresh=1:keyint=20:bframes=0"}
    footage.write(folder / "refresh.mkv", np.concatenate(shots), fps=25, options=options)
    footage.write(
        folder / "program.mpg",
        np.concatenate(shots[::-1]),
        fps=25,
        codec="mpeg2video",
        options={"bf": "2", "g": "12", "b": "4000000"},
    )
    return folder


def _start(videos: Path, output: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(videos), str(output), *more],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _digests(output: Path) -> dict[str, str]:
    """Everything that must not depend on how often the run was killed."""
    files = [p for p in (output / "shards").rglob("*") if p.is_file()]
    files += [output / "clips.parquet", output / "videos.parquet", output / "failed.jsonl"]
    return {
        str(p.relative_to(output)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(files)
        if p.name != "index.sqlite-journal"
    }


def test_killed_runs_end_byte_identical(tmp_path: Path) -> None:
    videos = _videos(tmp_path / "in")
    began = time.monotonic()
    whole = _start(videos, tmp_path / "whole")
    _, errors = whole.communicate(timeout=120)
    assert whole.returncode == 0, errors
    length_s = time.monotonic() - began
    expected = _digests(tmp_path / "whole")
    assert sum(name.endswith(".tar") for name in expected) >= 3
    chance = random.Random(1)
    kills = 0
    for attempt in range(3):
        output = tmp_path / f"killed{attempt}"
        # The first kills fall anywhere; later ones ever further on, so that the run gets through.
        for step in range(4):
            process = _start(videos, output)
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.uniform(0, length_s * (step + 1) / 6))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += process.returncode == -signal.SIGKILL
        last = _start(videos, output)
        _, errors = last.communicate(timeout=120)
        assert last.returncode == 0, errors
        assert _digests(output) == expected
        assert not [p for p in (output / "shards").rglob(".tmp-*") if p.suffix == ".tar"]
    assert kills >= 6, "the runs were too short to be killed"


def test_a_kill_between_the_records_of_one_source(tmp_path: Path) -> None:
    videos = _videos(tmp_path / "in", 1)
    whole = _start(videos, tmp_path / "whole")
    _, errors = whole.communicate(timeout=120)
    assert whole.returncode == 0, errors
    expected = _digests(tmp_path / "whole")
    for number in (3, 6, 9):  # of three sources with three clips each, the last ones
        output = tmp_path / f"killed{number}"
        killed = _start(videos, output, str(number))
        killed.communicate(timeout=120)
        assert killed.returncode == -signal.SIGKILL
        last = _start(videos, output)
        _, errors = last.communicate(timeout=120)
        assert last.returncode == 0, errors
        assert _digests(output) == expected


def test_a_second_driver_is_refused_by_name(tmp_path: Path) -> None:
    videos = _videos(tmp_path / "in", 1)
    with (
        only_driver(tmp_path / "out" / "ledger"),
        pytest.raises(VfmError, match=f"process {os.getpid()} on .*wait for it"),
    ):
        curate(CurateConfig(input=str(videos), output=str(tmp_path / "out")))
    assert curate(CurateConfig(input=str(videos), output=str(tmp_path / "out"))).exit_code == 0
