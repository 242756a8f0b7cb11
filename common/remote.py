"""Files in object stores and on web servers, read by ranges and never copied as a whole.

Where they lie is a URL: `s3://bucket/key`, `gs://bucket/key`, `az://container/key`,
`http://host/path`. Credentials and endpoints come from the environment, as the stores' own tools
have them (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`, ...). Answers of a server in
trouble (5xx), time-outs and bodies that end too early are tried again a few times.
"""

import hashlib
import io
import itertools
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import obstore
from obstore.exceptions import (
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import from_url

from common.errors import MediaError, VfmError

T = TypeVar("T")

SCHEMES = ("s3", "gs", "az", "http", "https")
_URL = re.compile(rf"({'|'.join(SCHEMES)})://[^/]", re.IGNORECASE)
_BLOCK_BYTES = 1 << 20
_MOST_AHEAD = 8
"""Blocks that one request fetches at most, once reading goes straight on."""
_MOST_HELD = 24
_TRIES = 5
"""Of a request as a whole: the client below repeats by itself, but neither every request nor one
whose answer was cut off in its middle."""
_PAUSE_S = 0.5
"""Before the second of them; three times as long before each further one."""
_REFUSED = re.compile(r"\b(401 Unauthorized|403 Forbidden|InvalidAccessKeyId)\b")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
_FINAL = re.compile(r"status code: 4(?!08|29)\d\d")
"""What the next try would meet as well."""
_DENIED = "access is denied: check the credentials in the environment, and what they allow there"
_TELLS_OF_STORES = ("AWS_", "GOOGLE_", "AZURE_")
_TROUBLE = (BaseError, OSError)
"""What obstore raises; a missing object is Python's own FileNotFoundError."""
_RETRIES: Any = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
_CLIENT: Any = {"timeout": "60s", "connect_timeout": "10s", "allow_http": True}
"""Without TLS only where a URL or an endpoint in the environment says http:// itself."""


@dataclass(frozen=True, kw_only=True)
class RemoteState:
    """What a store says of one object."""

    num_bytes: int
    tag: int
    """Changes with the content: from the entity tag where there is one, else the time."""


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


class StoreError(Exception):
    """What a store answered. `reason` is `missing`, `no_bucket`, `denied` or `trouble`."""

    def __init__(self, reason: str, detail: str, *, final: bool) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.final = final
        """Whether there is no sense in asking again."""

    @property
    def of_media(self) -> MediaError:
        """The same of a video that should lie there: `missing` or `unreadable`."""
        return MediaError("missing" if self.reason == "missing" else "unreadable", self.detail)


def asked(url: str, request: Callable[[Any, str], T]) -> T:
    """A request of the store of a URL, made again where that may help.

    Args:
        request: called with the store and the key.
    Raises:
        StoreError: where the store refuses, or stays in trouble.
    """
    store, key = _place(url)
    for attempt in itertools.count(1):
        try:
            return request(store, key)
        except _TROUBLE as error:
            found = _told(url, error)
            if found.final or attempt == _TRIES:
                raise found from None
            time.sleep(_PAUSE_S * 3 ** (attempt - 1))
    raise AssertionError("unreachable")


def remote_state(url: str) -> RemoteState:
    """Raises `MediaError`: `missing` or `unreadable`."""
    try:
        return _state(asked(url, lambda store, key: obstore.head(store, key)))
    except StoreError as error:
        raise error.of_media from None


def remote_objects(url: str) -> dict[str, RemoteState]:
    """URLs of all objects below a folder, or of the one object, in order. Needs one request for a
    thousand of them.

    Raises `VfmError` where the store refuses or does not exist.
    """
    root, key = split(url)
    prefix = key.rstrip("/")

    def listed(store: Any, key: str) -> list[Any]:
        found = [item for batch in obstore.list(store, prefix or None) for item in batch]
        return found if found or not prefix else [obstore.head(store, key)]

    try:
        found = asked(url, listed)
    except StoreError as error:
        raise VfmError(error.detail) from None
    return {f"{root}/{o['path']}": _state(o) for o in sorted(found, key=lambda o: o["path"])}


def _state(meta: Any) -> RemoteState:
    # Some stores quote the tag in one answer and not in another.
    text = (meta["e_tag"] or meta["last_modified"].isoformat()).strip('"')
    tag = hashlib.blake2b(text.encode(), digest_size=7).digest()
    return RemoteState(num_bytes=meta["size"], tag=int.from_bytes(tag, "big"))


class RemoteFile(io.RawIOBase):
    """One object as a file that can be read and sought. Holds up to 24 MiB; reading on fetches
    ahead, up to 8 MiB at once, jumping about fetches 1 MiB.

    Raises `MediaError`, `missing` or `unreadable`, from any method that reaches the store.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.num_bytes = remote_state(url).num_bytes
        self._at = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._last = -1
        self._ahead = 1
        self.num_requests = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.num_bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = self.num_bytes - self._at
        wanted = left if size is None or size < 0 else min(size, left)
        parts = []
        while wanted > 0:
            number, inside = divmod(self._at, _BLOCK_BYTES)
            part = self._block(number)[inside : inside + wanted]
            parts.append(part)
            self._at += len(part)
            wanted -= len(part)
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            self._ahead = min(2 * self._ahead, _MOST_AHEAD) if number == self._last + 1 else 1
            self._fetch(number)
        self._last = number
        self._blocks.move_to_end(number)
        return self._blocks[number]

    def _fetch(self, number: int) -> None:
        start = number * _BLOCK_BYTES
        ahead = [self._ahead]
        data = b""

        def part(store: Any, key: str) -> bytes:
            end = min(start + ahead.pop() * _BLOCK_BYTES, self.num_bytes)
            ahead.append(1)  # what is asked again is small, for a link that is slow
            self.num_requests += 1
            got = bytes(obstore.get_range(store, key, start=start, end=end))
            if len(got) != end - start:
                raise OSError(f"{len(got)} bytes came where {end - start} should be")
            return got

        try:
            data = asked(self.url, part)
        except StoreError as error:
            raise error.of_media from None
        for at in range(0, len(data), _BLOCK_BYTES):
            self._blocks[number + at // _BLOCK_BYTES] = data[at : at + _BLOCK_BYTES]
        while len(self._blocks) > _MOST_HELD:
            self._blocks.popitem(last=False)


def open_bytes(place: str | Path) -> BinaryIO | RemoteFile:
    """A local file or a remote one, to be read."""
    return RemoteFile(str(place)) if is_url(str(place)) else Path(place).open("rb")


def for_av(place: str | Path) -> str | RemoteFile:
    """What `av.open` takes for a local path or a URL: FFmpeg's own network code is never used."""
    return RemoteFile(str(place)) if is_url(str(place)) else str(place)


def chunks(place: str | Path, size: int = 4 << 20) -> Iterator[bytes]:
    """The bytes of a local file or a remote one, in order."""
    with open_bytes(place) as file:
        while data := file.read(size):
            yield data


def split(url: str) -> tuple[str, str]:
    """(store, key)"""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


def _place(url: str) -> tuple[Any, str]:
    root, key = split(url)
    told = tuple((k, v) for k, v in os.environ.items() if k.startswith(_TELLS_OF_STORES))
    try:
        return _store(root, told, repr((_CLIENT, _RETRIES))), key
    except _TROUBLE as error:
        raise VfmError(f"{url}: {_first_line(error)}") from None


@lru_cache(maxsize=16)
def _store(root: str, environment: tuple[tuple[str, str], ...], settings: str) -> Any:
    """One client per store keeps its connections, as long as nothing that it is made from changes;
    that is all that the last two are for."""
    return from_url(root, client_options=_CLIENT, retry_config=_RETRIES)


def _told(url: str, error: Exception) -> StoreError:
    text = str(error)
    if _NO_BUCKET.search(text):
        return StoreError("no_bucket", f"{url}: there is no such bucket", final=True)
    if isinstance(error, NotFoundError | FileNotFoundError):
        return StoreError("missing", f"{url} does not exist", final=True)
    denied = isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError)
    if denied or _REFUSED.search(text):
        return StoreError("denied", f"{url}: {_DENIED}", final=True)
    final = _FINAL.search(text) is not None
    return StoreError("trouble", f"{url}: {_first_line(error)}", final=final)


def _first_line(error: Exception) -> str:
    """What a store said, without the traces that come after it."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
