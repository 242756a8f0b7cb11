"""What is done, so that a killed run continues exactly. One SQLite file, one writer at a time."""

import contextlib
import fcntl
import json
import os
import socket
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from common.errors import DataError, VfmError
from common.machine import writing_to

_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS files (
    path TEXT PRIMARY KEY, num_bytes INTEGER, modified_ns INTEGER, video_id TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS sources (
    video_id TEXT, source TEXT, path TEXT NOT NULL, duplicate INTEGER NOT NULL,
    captions TEXT NOT NULL, PRIMARY KEY (video_id, source)
);
CREATE TABLE IF NOT EXISTS work (
    content_id TEXT, span TEXT, stage TEXT, params TEXT,
    results TEXT NOT NULL, wall_s REAL NOT NULL,
    PRIMARY KEY (content_id, span, stage, params)
);
CREATE INDEX IF NOT EXISTS work_of_stage ON work (stage, params, content_id);
"""
_MENDS = {
    sqlite3.SQLITE_BUSY: "another program has it open; close that",
    sqlite3.SQLITE_LOCKED: "another program has it open; close that",
    sqlite3.SQLITE_FULL: "its disk is full; free some space",
    sqlite3.SQLITE_READONLY: "it is read-only; make its folder writable",
    sqlite3.SQLITE_PERM: "this user may not write it; change its permissions",
    sqlite3.SQLITE_CANTOPEN: "this user may not write its folder; change its permissions",
    sqlite3.SQLITE_IOERR: "its disk gives errors or is full; check it",
}
"""What to do, by SQLite's kind of error."""


@dataclass(frozen=True, kw_only=True)
class KnownSource:
    """A source of the folder, from this run or an earlier one."""

    video_id: str
    source: str
    path: str
    duplicate: bool
    captions: Any


class Ledger:
    """Results by (content, span, stage, hash of parameters). Every write is on disk on return."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._open(folder / "ledger.sqlite")
        self._check_version()

    def _open(self, path: Path) -> None:
        self._path = path
        with self._explained():
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_TABLES)

    def _check_version(self) -> None:
        version = self.meta("version")
        if version is None:
            self.set_meta("version", _VERSION)
        elif version != _VERSION:
            raise DataError(f"{self._path} is of format {version}, this vfm writes {_VERSION}")

    def close(self) -> None:
        self._db.close()

    def may_write(self) -> None:
        """To be called before a file of the folder is replaced. Raises `VfmError` where the folder
        is no longer this driver's, which cannot be on a disk."""

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """All that is written inside is on disk at the end, or nothing of it."""
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._execute("ROLLBACK")
            raise
        self._execute("COMMIT")

    def meta(self, key: str) -> Any | None:
        row = self._execute("SELECT value FROM meta WHERE key = ?", key).fetchone()
        return None if row is None else json.loads(row[0])

    def set_meta(self, key: str, value: Any) -> None:
        self._execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", key, json.dumps(value))

    def recall(self, content_id: str, span: str, stage: str, params: str) -> Any | None:
        """The results recorded for this work, or None."""
        row = self._execute(
            "SELECT results FROM work WHERE content_id=? AND span=? AND stage=? AND params=?",
            *(content_id, span, stage, params),
        ).fetchone()
        return None if row is None else json.loads(row[0])

    def recorded_of(self, content_id: str, span: str, stage: str) -> list[Any]:
        """The results of a stage for this work under any parameters, the latest first."""
        rows = self._execute(
            "SELECT results FROM work WHERE content_id=? AND span=? AND stage=? "
            "ORDER BY rowid DESC",
            *(content_id, span, stage),
        )
        return [json.loads(row[0]) for row in rows]

    def record(
        self, content_id: str, span: str, stage: str, params: str, results: Any, wall_s: float
    ) -> None:
        self._execute(
            "INSERT OR REPLACE INTO work VALUES (?, ?, ?, ?, ?, ?)",
            *(content_id, span, stage, params, json.dumps(results), wall_s),
        )

    def recorded(self, stage: str, params: str) -> set[str]:
        """Contents of which a stage has recorded anything. Reads no results."""
        rows = self._execute(
            "SELECT DISTINCT content_id FROM work WHERE stage=? AND params=?", stage, params
        )
        return {row[0] for row in rows}

    def recall_all(
        self, content_ids: Iterable[str], stage: str, params: str
    ) -> Iterator[tuple[str, Any]]:
        """(content, its results) for whole contents that are `recorded`, in order."""
        for content_id in content_ids:
            yield content_id, self.recall(content_id, "", stage, params)

    def known_file(self, path: str, num_bytes: int, modified_ns: int) -> str | None:
        """The id of a file that has not changed since it was hashed."""
        row = self._execute(
            "SELECT video_id FROM files WHERE path=? AND num_bytes=? AND modified_ns=?",
            *(path, num_bytes, modified_ns),
        ).fetchone()
        return None if row is None else row[0]

    def remember_file(self, path: str, num_bytes: int, modified_ns: int, video_id: str) -> None:
        self._execute(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)",
            *(path, num_bytes, modified_ns, video_id),
        )

    def remember_source(self, source: KnownSource) -> None:
        """Adds a source, or replaces the one of that id and name."""
        self._execute(
            "INSERT OR REPLACE INTO sources VALUES (?, ?, ?, ?, ?)",
            *(source.video_id, source.source, source.path, source.duplicate),
            json.dumps(source.captions),
        )

    def forget_source(self, source: KnownSource) -> None:
        """Leaves out one name of a video; what was measured of its content stays known."""
        self._execute(
            "DELETE FROM sources WHERE video_id=? AND source=?", source.video_id, source.source
        )

    def sources(self) -> list[KnownSource]:
        """All sources of this folder, by name."""
        return self._sources("")

    def sources_of(self, video_id: str) -> list[KnownSource]:
        """The names of one video."""
        return self._sources("WHERE video_id=?", video_id)

    def _sources(self, where: str, *values: str) -> list[KnownSource]:
        rows = self._execute(
            "SELECT video_id, source, path, duplicate, captions FROM sources "
            f"{where} ORDER BY source, video_id",
            *values,
        )
        return [
            KnownSource(
                video_id=row[0],
                source=row[1],
                path=row[2],
                duplicate=bool(row[3]),
                captions=json.loads(row[4]),
            )
            for row in rows
        ]

    def _execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        with self._explained():
            return self._db.execute(statement, values)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Only what SQLite calls damage is told as damage; the rest has its own mend."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            path, folder = self._path, self._path.parent.parent
            # The low byte of SQLite's extended codes is the kind.
            kind = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
            if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise DataError(
                    f"{path} is damaged ({error}): remove the whole folder {folder}, or choose "
                    "another output folder"
                ) from error
            mend = _MENDS.get(kind)
            if mend is None:
                raise
            raise VfmError(
                f"{path} cannot be used ({error}): {mend}; the same command continues the run"
            ) from error


@contextlib.contextmanager
def only_driver(folder: Path) -> Iterator[None]:
    """Holds a folder for one driver; raises `VfmError` naming the other where there is one.

    The kernel drops the lock with its process, so a killed driver leaves nothing to clean up.
    """
    with contextlib.ExitStack() as stack:
        with writing_to(folder.parent):
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((folder / "lock").open("a+"))
        _take(file, folder)
        file.seek(0)
        file.truncate()
        json.dump({"pid": os.getpid(), "host": socket.gethostname()}, file)
        file.flush()
        yield


def _take(file: IO[str], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        try:
            other = json.load(file)
            who = f"process {other['pid']} on {other['host']}"
        except (ValueError, KeyError, TypeError):
            who = "another process"
        raise VfmError(
            f"{folder.parent} is being written by {who}: wait for it, stop it, or choose another "
            "output folder"
        ) from None
    except OSError as error:
        raise VfmError(
            f"{folder.parent} lies on a disk without locks ({error.strerror}): choose another "
            "output folder"
        ) from error
