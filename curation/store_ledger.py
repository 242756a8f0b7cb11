"""The ledger of a folder in an object store: objects that are written once, and few that change.

    files/S/STATE-VIDEO           empty; a file in that state holds that video
    work/V/VIDEO/STAGE.PARAMS.N   what a stage made of a video or parts of it, one object each time
    sources.json, meta.json       rewritten as a whole, by the only driver

S and V are the first digits of STATE and VIDEO, so that sixteen lists are made at once.

What is done is known from the names, of which one request lists a thousand, and contents are read
when they are needed. So a run starts as fast whatever was done before, but for that listing, and
each thing done costs one request.
"""

import contextlib
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.errors import DataError
from common.store_path import StorePath, read_all
from curation.lease import Lease
from curation.ledger import KnownSource, Ledger

_DIGITS = "0123456789abcdef"


class StoreLedger(Ledger):
    """What `Ledger` is on a disk. Sources and settings lie in its memory as well."""

    def __init__(self, folder: StorePath, lease: Lease | None) -> None:
        """Without a lease it is to be read only."""
        self._folder = folder
        self._lease = lease
        self._open(Path(":memory:"))
        self._files: dict[str, str] = {}
        self._groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        """(content, stage, params) to the numbers of the objects."""
        self._latest: tuple[str, dict[str, Any]] = ("", {})
        """The object that was read last, and what it holds."""
        self._new: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._open_end = False
        """Whether more is to be written together with what there is."""
        self._changed: set[str] = set()
        under = [self._folder / part / digit for part in ("files", "work") for digit in _DIGITS]
        with ThreadPoolExecutor(len(under)) as pool:
            listed = list(pool.map(_names, under))
        for name in (name for names in listed[: len(_DIGITS)] for name in names):
            state, _, video_id = name.partition("-")
            self._files[state] = video_id
        for name in (name for names in listed[len(_DIGITS) :] for name in names):
            content_id, _, rest = name.partition("/")
            stage, params, number = rest.split(".")
            self._groups[content_id, stage, params].append(int(number))
        for numbers in self._groups.values():
            numbers.sort()
        for key, value in stored_meta(self._folder).items():
            super().set_meta(key, value)
        with super().together():
            for source in self._sources_there():
                super().remember_source(KnownSource(**source))
        self._check_version()

    def may_write(self) -> None:
        assert self._lease is not None, "opened to be read"
        self._lease.check()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is written inside is in the store at the end; of each video, or of the sources, all
        or nothing."""
        self._open_end = True
        try:
            with super().together():
                yield
        finally:
            self._open_end = False
        self._save()

    def set_meta(self, key: str, value: Any) -> None:
        super().set_meta(key, value)
        self._changed.add("meta")
        self._save()

    def remember_source(self, source: KnownSource) -> None:
        """In the store with the next `together`: until then the same input gives the same."""
        super().remember_source(source)
        self._changed.add("sources")

    def forget_source(self, source: KnownSource) -> None:
        super().forget_source(source)
        self._changed.add("sources")

    def known_file(self, path: str, num_bytes: int, modified_ns: int) -> str | None:
        return self._files.get(_state(path, num_bytes, modified_ns))

    def remember_file(self, path: str, num_bytes: int, modified_ns: int, video_id: str) -> None:
        state = _state(path, num_bytes, modified_ns)
        self.may_write()
        (self._folder / "files" / state[0] / f"{state}-{video_id}").write_bytes(b"")
        self._files[state] = video_id

    def record(
        self, content_id: str, span: str, stage: str, params: str, results: Any, wall_s: float
    ) -> None:
        group = self._new.setdefault((content_id, stage, params), {})
        group[span] = {"results": results, "wall_s": wall_s}
        self._save()

    def recall(self, content_id: str, span: str, stage: str, params: str) -> Any | None:
        for number in reversed(self._groups.get((content_id, stage, params), [])):
            found = self._object((content_id, stage, params), number).get(span)
            if found is not None:
                return found["results"]
        return None

    def recall_all(
        self, content_ids: Iterable[str], stage: str, params: str
    ) -> Iterator[tuple[str, Any]]:
        ids = list(content_ids)
        places = [
            self._place((id_, stage, params), self._groups[id_, stage, params][-1]) for id_ in ids
        ]
        for id_, place, data in zip(ids, places, read_all(places), strict=True):
            yield id_, _parsed(place, data)[""]["results"]

    def recorded_of(self, content_id: str, span: str, stage: str) -> list[Any]:
        groups = [key for key in self._groups if key[:2] == (content_id, stage)]
        found = [self._object(key, number) for key in groups for number in self._groups[key]]
        return [group[span]["results"] for group in reversed(found) if span in group]

    def recorded(self, stage: str, params: str) -> set[str]:
        return {key[0] for key in self._groups if key[1:] == (stage, params)}

    def _save(self) -> None:
        """Writes what is not in the store yet, unless more is to come at once."""
        if self._open_end or not (self._new or self._changed):
            return
        self.may_write()
        for key, group in self._new.items():
            data = json.dumps(group, sort_keys=True).encode()
            number = max(self._groups.get(key, []), default=-1) + 1
            # A number can be taken only by what this driver wrote without being told so.
            while self._place(key, number).create(data) is None:
                number += 1
            self._groups[key].append(number)
        self._new.clear()
        if "sources" in self._changed:
            self._write("sources", [asdict(source) for source in self.sources()])
        if "meta" in self._changed:
            rows = self._execute("SELECT key, value FROM meta")
            self._write("meta", {key: json.loads(value) for key, value in rows})
        self._changed.clear()

    def _place(self, key: tuple[str, str, str], number: int) -> StorePath:
        content_id, stage, params = key
        folder = self._folder / "work" / content_id[0] / content_id
        return folder / f"{stage}.{params}.{number}"

    def _object(self, key: tuple[str, str, str], number: int) -> dict[str, Any]:
        place = self._place(key, number)
        if self._latest[0] != str(place):
            self._latest = str(place), _parsed(place, place.read_bytes())
        return self._latest[1]

    def _sources_there(self) -> list[Any]:
        place = self._folder / "sources.json"
        try:
            return _parsed(place, place.read_bytes())
        except FileNotFoundError:
            return []

    def _write(self, name: str, value: Any) -> None:
        (self._folder / f"{name}.json").write_bytes(json.dumps(value).encode())


def stored_meta(folder: StorePath) -> dict[str, Any]:
    """The settings that a ledger keeps, without the rest of it; none where there is no ledger."""
    place = folder / "meta.json"
    try:
        return _parsed(place, place.read_bytes())
    except FileNotFoundError:
        return {}


def _names(folder: StorePath) -> list[str]:
    return [name for name, _ in folder.keys()]  # noqa: SIM118 - no mapping


def _state(path: str, num_bytes: int, modified_ns: int) -> str:
    text = json.dumps([path, num_bytes, modified_ns]).encode()
    return hashlib.blake2b(text, digest_size=12).hexdigest()


def _parsed(place: StorePath, data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise DataError(
            f"{place} is damaged ({error}): remove the whole folder that it belongs to, or choose "
            "another output folder"
        ) from None
