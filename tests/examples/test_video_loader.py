"""The example of training on plain video files runs as it stands (wiring only)."""

import os
import subprocess
import sys
from pathlib import Path

from tests.dataloading.test_video import write

ROOT = Path(__file__).resolve().parents[2]


def test_it_trains_on_the_files_that_it_is_given(tmp_path: Path) -> None:
    videos = [write(tmp_path / name, num_frames=20) for name in ("a.mp4", "b.mkv")]
    script = ROOT / "examples/video_loader/train.py"
    words = ["--steps", "4", "--batch-size", "4", "--size", "16"]
    run = subprocess.run(
        [sys.executable, str(script), *map(str, videos), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0] == "32 windows of 2 files, 8 batches an epoch"
    assert lines[1].startswith("step 4: average 0.")
