"""Which files are sources, and the ids of videos and clips."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from common.errors import VfmError

_OF_PICTURES = (
    ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts",
    ".wmv", ".flv", ".3gp", ".ogv", ".mxf", ".y4m",
)  # fmt: skip
_OF_SOUND = (".m4a", ".mka", ".aac", ".mp3", ".wav", ".ogg", ".flac", ".opus")
EXTENSIONS = frozenset([*_OF_PICTURES, *_OF_SOUND])
"""Containers that may hold video. Those that are usually sound alone are opened too and refused by
name: a sound file in a folder of videos is likelier a mistake than a wish."""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of the input. `source` is its path in the input folder, with forward slashes."""

    source: str
    path: str
    content_id: str = ""
    """The video's id; empty until its bytes have been read."""

    @property
    def span(self) -> str:
        return ""

    @property
    def label(self) -> str:
        return self.source


def find_sources(folder: Path) -> tuple[list[SourceFile], list[str]]:
    """The candidate files of a folder in order of name, and the names of the other files.

    A single file is its own folder. Hidden files and folders are passed over.
    """
    if folder.is_file():
        return [SourceFile(source=folder.name, path=str(folder))], []
    candidates: list[SourceFile] = []
    others: list[str] = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts) or not path.is_file():
            continue
        try:
            name = relative.as_posix()
            name.encode()
        except UnicodeEncodeError:
            raise VfmError(f"a file name in {folder} is not UTF-8: {name!r}; rename it") from None
        if path.suffix.lower() in EXTENSIONS:
            candidates.append(SourceFile(source=name, path=str(path)))
        else:
            others.append(name)
    return candidates, others


def video_id_of(path: Path) -> str:
    """Sixteen hexadecimal digits of the file's bytes; a copy under another name has the same."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8))
    return digest.hexdigest()


def clip_id_of(video_id: str, start_us: int, end_us: int) -> str:
    """`VIDEO-START-END`, times in milliseconds; sorts by video, then by time."""
    return f"{video_id}-{start_us // 1000:09d}-{end_us // 1000:09d}"
