"""A folder or an object in an object store, with the part of `pathlib.Path` that our folders need.

A store has no folders, only keys with slashes: `mkdir` has nothing to do, and a folder is there
once it holds something. An object appears whole or not at all, so that what is written needs no
temporary name. Where a write is cut off, such as by a time-out, it is tried again.
"""

import fnmatch
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError

from common.errors import MediaError, VfmError
from common.remote import RemoteFile, StoreError, asked, is_url, split

T = TypeVar("T")

WRITABLE = ("s3://", "gs://", "az://")
"""URLs of what can be written to."""

_PART_BYTES = 8 << 20
"""Of a large file that is sent in parts."""
_AT_ONCE = 16
"""Requests that `read_all` has under way."""


class StorePath:
    """One key of a store, or all keys below it. Two of the same URL are equal; it can be pickled.

    Reading raises `FileNotFoundError` where there is nothing; any other trouble with the store is a
    `VfmError` of one line.
    """

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        self._url = f"{scheme}://{rest.rstrip('/')}"
        self._pure = PurePosixPath(rest)

    def __str__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"StorePath({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorePath) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __lt__(self, other: "StorePath") -> bool:
        return self._url < other._url

    def __truediv__(self, name: str) -> "StorePath":
        return StorePath(f"{self._url}/{name}")

    @property
    def name(self) -> str:
        return self._pure.name

    @property
    def stem(self) -> str:
        return self._pure.stem

    @property
    def suffix(self) -> str:
        return self._pure.suffix

    @property
    def parent(self) -> "StorePath":
        return StorePath(self._url.rpartition("/")[0])

    def with_name(self, name: str) -> "StorePath":
        return self.parent / name

    def relative_to(self, other: "StorePath") -> PurePosixPath:
        return PurePosixPath(self._url.removeprefix(f"{other}/"))

    def resolve(self) -> "StorePath":
        return self

    def absolute(self) -> "StorePath":
        return self

    # ---- what is there

    def is_file(self) -> bool:
        return self.num_bytes() is not None

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_dir(self) -> bool:
        """Whether there is any key below."""

        def ask(store: Any, key: str) -> bool:
            prefix = f"{key}/" if key else None
            return any(True for batch in obstore.list(store, prefix, chunk_size=1) for _ in batch)

        return self._ask(ask)

    def num_bytes(self) -> int | None:
        """Size of the object; None where there is none."""
        try:
            return self._ask(lambda store, key: obstore.head(store, key)["size"])
        except FileNotFoundError:
            return None

    def keys(self) -> Iterator[tuple[str, int]]:
        """Every object below: its name from here on, and its size. In order of name."""

        def ask(store: Any, key: str) -> list[tuple[str, int]]:
            prefix = f"{key}/" if key else ""
            batches = obstore.list(store, prefix or None)
            return [(i["path"][len(prefix) :], i["size"]) for batch in batches for i in batch]

        yield from sorted(self._ask(ask))

    def rglob(self, pattern: str) -> Iterator["StorePath"]:
        """Objects below whose own name matches."""
        for name, _ in self.keys():
            if fnmatch.fnmatchcase(name.rpartition("/")[2], pattern):
                yield self / name

    def iterdir(self) -> Iterator["StorePath"]:
        """Objects and folders right below."""
        names = dict.fromkeys(name.partition("/")[0] for name, _ in self.keys())
        return (self / name for name in names)

    def glob(self, pattern: str) -> Iterator["StorePath"]:
        """Objects right below whose name matches."""
        found = (name for name, _ in self.keys() if "/" not in name)
        return (self / name for name in found if fnmatch.fnmatchcase(name, pattern))

    # ---- reading

    def open(self, mode: str = "rb") -> RemoteFile:
        """The object to be read by ranges."""
        assert mode == "rb"
        try:
            return RemoteFile(self._url)
        except MediaError as error:
            if error.reason == "missing":
                raise FileNotFoundError(error.detail) from None
            raise VfmError(error.detail) from None

    def read_bytes(self) -> bytes:
        return self._ask(lambda store, key: bytes(obstore.get(store, key).bytes()))

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    # ---- writing

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Folders need no making."""

    def write_bytes(self, data: bytes) -> int:
        """Replaces the object."""
        self._ask(lambda store, key: obstore.put(store, key, data))
        return len(data)

    def upload(self, path: Path) -> None:
        """Replaces the object by a local file, which is sent in parts where it is large."""

        def send(store: Any, key: str) -> None:
            with path.open("rb") as file:
                obstore.put(store, key, file, chunk_size=_PART_BYTES)

        self._ask(send)

    def create(self, data: bytes) -> "Tag | None":
        """Writes the object unless there is one.

        Returns its tag; None where there is one with other bytes. One with these bytes counts as
        this one, since a store may have written what it could not confirm any more.
        """
        return self._conditional(data, "create")

    def replace_tagged(self, data: bytes, tag: "Tag") -> "Tag | None":
        """Replaces the object that has this tag. Returns the new tag; None where it has another by
        now, or is gone."""
        return self._conditional(data, tag)

    def tagged(self) -> tuple[bytes, "Tag"]:
        """The object and its tag."""

        def ask(store: Any, key: str) -> tuple[bytes, Tag]:
            found = obstore.get(store, key)
            return bytes(found.bytes()), _tag(found.meta)

        return self._ask(ask)

    def _conditional(self, data: bytes, mode: Any) -> "Tag | None":
        def ask(store: Any, key: str) -> Tag | None:
            try:
                return _tag(obstore.put(store, key, data, mode=mode))
            except (AlreadyExistsError, PreconditionError):
                return None

        tag = self._ask(ask)
        if tag is not None:
            return tag
        try:
            there, tag = self.tagged()
        except FileNotFoundError:
            return None
        return tag if there == data else None

    def unlink(self, missing_ok: bool = False) -> None:
        """Gone afterwards; whether it was there is not asked, and `missing_ok` is for callers."""
        remove([self])

    def _ask(self, request: Callable[[Any, str], T]) -> T:
        try:
            return asked(self._url, request)
        except StoreError as error:
            if error.reason == "missing":
                raise FileNotFoundError(error.detail) from None
            raise VfmError(error.detail) from None


Tag: TypeAlias = dict[str, str]
"""What an object has until it is written to again; each store has its own."""
Place: TypeAlias = Path | StorePath
"""Where a folder or a file of ours lies."""


def place_of(text: str) -> Place:
    """A path or a URL, as it is typed; a relative path from the current folder."""
    return StorePath(text) if is_url(text) else Path(text).absolute()


def names_in(folder: Place) -> set[str]:
    """Of what lies right in a folder; none where there is no folder."""
    if isinstance(folder, Path) and not folder.is_dir():
        return set()
    return {path.name for path in folder.iterdir()}


def bytes_of(place: Place) -> int | None:
    """Size of a file; None where there is none."""
    if isinstance(place, StorePath):
        return place.num_bytes()
    return place.stat().st_size if place.is_file() else None


def remove(places: Iterable[Place]) -> None:
    """Removes files, whether they are there or not; those of one store together."""
    by_store: dict[str, list[StorePath]] = {}
    for at in places:
        if isinstance(at, Path):
            at.unlink(missing_ok=True)
        else:
            by_store.setdefault(split(str(at))[0], []).append(at)
    for those in by_store.values():
        keys = [split(str(at))[1] for at in those]
        try:
            asked(str(those[0]), lambda store, _, keys=keys: obstore.delete(store, keys))
        except StoreError as error:
            if error.reason != "missing":
                raise VfmError(error.detail) from None


def read_all(places: Iterable[Place]) -> Iterator[bytes]:
    """The bytes of files, in order; those of stores are read ahead, some at once."""
    waiting = iter(places)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        under_way = [pool.submit(at.read_bytes) for at in itertools.islice(waiting, _AT_ONCE)]
        while under_way:
            yield under_way.pop(0).result()
            under_way += [pool.submit(at.read_bytes) for at in itertools.islice(waiting, 1)]


def _tag(meta: Any) -> Tag:
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}
