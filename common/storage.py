"""Files and folders that are whole or absent: made under a temporary name, synced, then renamed.
In an object store, where what is written appears at once, files are made on the local disk first.
"""

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.store_path import Place

TEMPORARY_PREFIX = ".tmp-"
"""What unfinished files are called; a killed writer leaves them, and they may be removed."""
REPLACED_PREFIX = ".old-"
"""What an old folder is called while its successor is renamed, where two names cannot be swapped;
`recover_folder` gives it its name back. Unlike an unfinished file, it may be the only copy."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def write_atomic(path: "Place", data: bytes) -> None:
    """Writes `data` so that a kill at any instant leaves the old file or the new one."""
    if not isinstance(path, Path):
        path.write_bytes(data)
        return
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def atomic_path(path: "Place") -> Iterator[Path]:
    """A temporary path beside `path` to write to; renamed on success, removed on an exception.
    Of an object in a store it lies among this machine's temporary files, and is sent there.

    The temporary name keeps the suffix, because encoders choose the container by it.
    """
    if not isinstance(path, Path):
        with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX) as folder:
            temporary = Path(folder, f"file{path.suffix}")
            yield temporary
            path.upload(temporary)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _sync(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` to fill; renamed on success, removed on an exception.

    An existing folder of that name is replaced, so that a kill at any instant leaves the old one
    or the new one under it. Where the file system cannot swap two names (NFS, or no Linux), there
    is an instant at which the old one is whole under another name; the next call for `path`, or
    `recover_folder`, brings it back.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    recover_folder(path)
    temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=path.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        _sync_tree(temporary)
        if not path.is_dir() or path.is_symlink():
            temporary.replace(path)
        elif not _swapped(temporary, path):
            path.replace(_replaced(path))
            temporary.replace(path)
        # Before the old one is removed, so that a power cut leaves one of the two as well.
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        recover_folder(path)


def recover_folder(path: Path) -> None:
    """Undoes a replacement of `path` that was cut off in its middle; else removes what it left."""
    replaced = _replaced(path)
    if not replaced.is_dir():
        return
    if path.exists():
        # Under a name that is never brought back, since a kill may leave half of it.
        unwanted = tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
        shutil.rmtree(replaced.replace(unwanted))
    else:
        replaced.replace(path)
        _sync(path.parent)


def _replaced(path: Path) -> Path:
    return path.with_name(REPLACED_PREFIX + path.name)


def _swapped(one: Path, other: Path) -> bool:
    """Exchanges two names in one step; False where that cannot be done."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):
        return False
    names = os.fsencode(one), os.fsencode(other)
    return renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0


def _sync_tree(path: Path) -> None:
    """Syncs every file below, and every folder after what it holds."""
    for folder, _, names in os.walk(path, topdown=False):
        for file in (Path(folder, name) for name in names):
            if file.is_file():
                _sync(file)
        _sync(Path(folder))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
