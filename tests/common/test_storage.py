"""Files are whole or absent. One process, no network."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.storage import atomic_folder, atomic_path, write_atomic

ROOT = Path(__file__).resolve().parents[2]


def test_a_write_replaces_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.bin"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in path.parent.iterdir()] == ["a.bin"]


def test_an_exception_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    write_atomic(path, b"old")

    def fail() -> None:
        with atomic_path(path) as temporary:
            assert temporary.suffix == ".mp4"
            temporary.write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    for name in ("one", "two"):
        with atomic_folder(folder) as temporary:
            (temporary / name).write_bytes(b"x")
    assert [p.name for p in folder.iterdir()] == ["two"]

    def fail() -> None:
        with atomic_folder(folder) as temporary:
            (temporary / "three").write_bytes(b"x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [p.name for p in folder.iterdir()] == ["two"]
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_kill_before_the_rename_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomic(path, b"old")
    script = (
        "import os, signal, sys; from pathlib import Path; from common.storage import atomic_path\n"
        "with atomic_path(Path(sys.argv[1])) as t:\n"
        "    t.write_bytes(b'half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
