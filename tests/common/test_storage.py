"""Files are whole or absent. One process, no network."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.storage import (
    REPLACED_PREFIX,
    TEMPORARY_PREFIX,
    atomic_folder,
    atomic_path,
    recover_folder,
    write_atomic,
)

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


REPLACE = """
import os, signal, sys
from pathlib import Path
from common import storage

path, kill_at, swap = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "swap"
if not swap:
    storage._swapped = lambda one, other: False
changes = 0
watching = False

def before_change(event, args):
    global changes
    if watching and event in ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "os.chmod"):
        if changes == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        changes += 1

sys.addaudithook(before_change)
with storage.atomic_folder(path) as folder:
    (folder / "sub").mkdir()
    for name in ("a", "b", "sub/c"):
        (folder / name).write_text("new")
    watching = True
"""


def content(folder: Path) -> dict[str, str]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_text() for p in files}


@pytest.mark.parametrize("how", ["swap", "two renames"])
def test_a_kill_at_any_instant_leaves_the_old_folder_or_the_new(tmp_path: Path, how: str) -> None:
    new = dict.fromkeys(("a", "b", "sub/c"), "new")
    left = []
    for kill_at in range(40):
        path = tmp_path / str(kill_at) / "f"
        with atomic_folder(path) as folder:
            (folder / "a").write_text("old")
        done = subprocess.run(
            [sys.executable, "-c", REPLACE, str(path), str(kill_at), how],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        if how == "swap":
            assert path.is_dir(), f"change {kill_at}"
        recover_folder(path)
        assert content(path) in ({"a": "old"}, new), f"change {kill_at}"
        left.append(content(path))
        if kill_at % 2:  # what was left must not come back in part, also where its name is free
            shutil.rmtree(path)
            recover_folder(path)
            assert not path.exists() or content(path) == {"a": "old"}
        with atomic_folder(path) as folder:
            (folder / "z").write_text("next")
        assert content(path) == {"z": "next"}
        assert [p.name for p in path.parent.iterdir() if p.name.startswith(REPLACED_PREFIX)] == []
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    assert done.returncode == 0
    assert left[0] == {"a": "old"}
    assert left[-2] == left[-1] == new


def test_a_replacement_that_fails_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    with atomic_folder(path) as folder:
        (folder / "a").write_text("old")
    monkeypatch.setattr("common.storage._swapped", lambda one, other: False)
    rename = Path.replace

    def only_aside(self: Path, target: Path) -> Path:
        if self.name.startswith(TEMPORARY_PREFIX):
            raise OSError("no space")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", only_aside)
    with pytest.raises(OSError, match="no space"), atomic_folder(path) as folder:
        (folder / "a").write_text("new")
    assert content(path) == {"a": "old"}
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_folder_takes_no_files_place(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("a file")
    with pytest.raises(NotADirectoryError), atomic_folder(path) as folder:
        (folder / "a").write_text("new")
    assert path.read_text() == "a file"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_all_that_a_folder_holds_is_synced_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    sync, rename = os.fsync, Path.replace

    def note_sync(handle: int) -> None:
        events.append(("sync", str(Path(f"/proc/self/fd/{handle}").readlink())))
        sync(handle)

    def note_rename(self: Path, target: Path) -> Path:
        events.append(("rename", str(target)))
        return rename(self, target)

    monkeypatch.setattr("os.fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_rename)
    with atomic_folder(tmp_path / "f") as folder:
        (folder / "sub" / "deep").mkdir(parents=True)
        for name in ("a", "sub/b", "sub/deep/c"):
            (folder / name).write_text("x")
        (folder / "a").chmod(0o444)
    top = str(folder)
    kinds = [kind for kind, _ in events]
    renamed = kinds.index("rename")
    before = [name.removeprefix(top) for kind, name in events[:renamed] if kind == "sync"]
    assert set(before) == {"", "/a", "/sub", "/sub/b", "/sub/deep", "/sub/deep/c"}
    for name in before:  # a folder after what it holds
        inside = [other for other in before if other.startswith(f"{name}/")]
        assert all(before.index(other) < before.index(name) for other in inside)
    assert events[renamed + 1 :] == [("sync", str(tmp_path))]
