"""Which files are sources, and the ids of videos and clips."""

import contextlib
import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import MediaError, VfmError
from common.remote import RemoteState, chunks, is_url, remote_objects, remote_state
from common.store_path import Place

_OF_PICTURES = (
    ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts",
    ".wmv", ".flv", ".3gp", ".ogv", ".mxf", ".y4m",
)  # fmt: skip
_OF_SOUND = (".m4a", ".mka", ".aac", ".mp3", ".wav", ".ogg", ".flac", ".opus")
EXTENSIONS = (*_OF_PICTURES, *_OF_SOUND)
"""Containers that may hold video. Those that are usually sound alone are opened too and refused by
name: a sound file in a folder of videos is likelier a mistake than a wish."""


LISTS = (".txt", ".list", ".lst")
"""Files whose lines name the input."""


@dataclass(frozen=True, kw_only=True)
class FileState:
    """What changes with every write to a file."""

    num_bytes: int
    modified_ns: int
    """Of a URL, a number made of its entity tag."""


def state_of(path: str) -> FileState:
    """Of a path or a URL. Raises `MediaError`: `missing` or `unreadable`."""
    if is_url(path):
        return _file_state(remote_state(path))
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        raise MediaError("missing", f"{path} does not exist any more") from None
    except OSError as error:
        raise MediaError("unreadable", f"{path}: {error.strerror or error}") from None
    return FileState(num_bytes=status.st_size, modified_ns=status.st_mtime_ns)


def _file_state(there: RemoteState) -> FileState:
    return FileState(num_bytes=there.num_bytes, modified_ns=there.tag)


@contextlib.contextmanager
def unchanged(path: str, state: FileState | None) -> Iterator[None]:
    """Raises `MediaError` where a file is not in that state before the work on it or after;
    None checks nothing."""

    def check() -> None:
        if state is not None and state_of(path) != state:
            raise MediaError("changed", f"{path} was written to after its id had been taken")

    check()
    try:
        yield
    except MediaError:
        check()  # what was found wrong may be wrong with other bytes
        raise
    check()


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of the input. `source` is its path in the input folder, with forward slashes."""

    source: str
    path: str
    content_id: str = ""
    """The video's id; empty until its bytes have been read."""
    state: FileState | None = None
    """Of the file when those bytes were read; before, as a store lists it."""
    known: Any = None
    """What a stage made of it with other parameters, of which parts may still hold."""

    @property
    def span(self) -> str:
        return ""

    @property
    def label(self) -> str:
        return self.source


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A place in the input that should have given videos and cannot."""

    source: str
    path: str
    reason: str
    detail: str


@dataclass(kw_only=True)
class Found:
    """What a folder holds, each list in order of name."""

    files: list[SourceFile] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Names of files of other kinds."""
    hidden: list[str] = field(default_factory=list)
    """Names that begin with a dot, or lie in a folder of such a name; a folder stands for all in
    it."""
    refused: list[Refusal] = field(default_factory=list)


def find_sources(input_: str, *, without: Place | None = None) -> Found:
    """What an input names: a folder or a file, a URL of either, or a list, which is a text file
    with a path or a URL in each line.

    Raises `VfmError` where a URL cannot be listed.
    """
    if is_url(input_):
        return _scan_store(input_)
    path = Path(input_).absolute()
    without = without if isinstance(without, Path) else None
    return _read_list(path, without=without) if is_list(input_) else scan(path, without=without)


def is_list(input_: str) -> bool:
    return not is_url(input_) and Path(input_).suffix.lower() in LISTS and Path(input_).is_file()


def _scan_store(url: str) -> Found:
    found = Found()
    base = url.rstrip("/")
    for at, there in remote_objects(url).items():
        inside = at.startswith(base + "/")
        name = at[len(base) + 1 :] if inside else at.rsplit("/", 1)[-1]
        if not (inside or at == base):
            continue
        if any(part.startswith(".") for part in name.split("/")):
            found.hidden.append(name)
            continue
        if Path(name).suffix.lower() in EXTENSIONS:
            found.files.append(SourceFile(source=name, path=at, state=_file_state(there)))
        elif not name.endswith("/"):
            found.others.append(name)
    return found


def _read_list(path: Path, *, without: Path | None) -> Found:
    """Each line's own words are its name; empty lines and those that begin with # say nothing."""
    found = Found()
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise VfmError(f"input={path} cannot be read as a list of paths: {error}") from None
    for line in dict.fromkeys(line.strip() for line in lines):
        if not line or line.startswith("#"):
            continue
        if is_url(line):
            found.files.append(SourceFile(source=line, path=line))
        elif (path.parent / line).is_dir():
            inner = scan(path.parent / line, without=without)
            prefix = line.rstrip("/") + "/"
            found.files += [replace(file, source=prefix + file.source) for file in inner.files]
            found.others += [prefix + name for name in inner.others]
            found.hidden += [prefix + name for name in inner.hidden]
            found.refused += [replace(r, source=prefix + r.source) for r in inner.refused]
        else:
            _take(found, path.parent / line, line)
    return found


def scan(folder: Path, *, without: Path | None = None) -> Found:
    """Everything in a folder, at any depth. A single file is its own folder.

    Links are followed, each folder is entered once, and hidden files and folders are named and
    passed over.

    Args:
        without: a folder that is left out wherever a link leads to it.
    """
    found = Found()
    if not folder.is_dir():
        _take(found, folder, folder.name)
        return found
    entered: set[tuple[int, int]] = set()
    if without is not None and without.is_dir():
        entered.add(_identity(without))
    # Links wait until all real folders are known, so that a file goes by its real name.
    folders, links = [(folder, "")], deque[tuple[Path, str]]()
    while folders or links:
        at, prefix = folders.pop() if folders else links.popleft()
        try:
            identity = _identity(at)
            if identity in entered:
                continue
            entered.add(identity)
            with os.scandir(at) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            detail = f"the folder cannot be read: {error.strerror or error}"
            found.refused.append(
                Refusal(
                    source=printable(prefix),
                    path=printable(str(at)),
                    reason="unreadable",
                    detail=detail,
                )
            )
            continue
        for entry in entries:
            if entry.name.startswith("."):
                found.hidden.append(printable(prefix + entry.name))
                continue
            path, name = at / entry.name, prefix + entry.name
            if entry.is_symlink() and os.path.isdir(path):  # noqa: PTH112 (never raises)
                links.append((path, name + "/"))
            elif entry.is_dir(follow_symlinks=False):
                folders.append((path, name + "/"))
            else:
                _take(found, path, name)
    found.files.sort(key=lambda file: file.source.split("/"))
    found.others.sort(key=lambda name: name.split("/"))
    found.hidden.sort(key=lambda name: name.split("/"))
    found.refused.sort(key=lambda refusal: refusal.source.split("/"))
    return found


def _take(found: Found, path: Path, name: str) -> None:
    if path.suffix.lower() not in EXTENSIONS:
        found.others.append(printable(name))
        return
    reason, detail = "unreadable", ""
    try:
        str(path).encode()
        if not stat.S_ISREG(path.stat().st_mode):
            detail = "is no ordinary file"
    except UnicodeEncodeError:
        reason, detail = "bad_name", "its name is not UTF-8: rename it"
    except FileNotFoundError:
        link = path.is_symlink()
        reason, detail = "missing", "is a link to nothing" if link else "is not there"
    except OSError as error:
        detail = error.strerror or str(error)
    if detail:
        where, name = printable(str(path)), printable(name)
        found.refused.append(
            Refusal(source=name, path=where, reason=reason, detail=f"{name}: {detail}")
        )
    else:
        found.files.append(SourceFile(source=name, path=str(path)))


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def printable(name: str) -> str:
    """A file's name for people: bytes that are not UTF-8 as their numbers."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def video_id_of(path: str | Path) -> str:
    """Sixteen hexadecimal digits of the bytes at a path or a URL; a copy under another name has
    the same."""
    digest = hashlib.blake2b(digest_size=8)
    for data in chunks(path):
        digest.update(data)
    return digest.hexdigest()


def clip_id_of(video_id: str, start_us: int, end_us: int) -> str:
    """`VIDEO-START-END`, times in milliseconds; sorts by video, then by time."""
    return f"{video_id}-{start_us // 1000:09d}-{end_us // 1000:09d}"
