"""Files in object stores and on web servers, read by ranges and never copied as a whole.

Where they lie is a URL: `s3://bucket/key`, `gs://bucket/key`, `az://account/container/key`,
`http://host/path`. Credentials and endpoints come from the environment, as the stores' own tools
have them (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`, ...). Answers of a server in
trouble (5xx) and time-outs are tried again a few times.
"""

import hashlib
import io
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import obstore
from obstore.exceptions import (
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import from_url

from common.errors import MediaError, VfmError

SCHEMES = ("s3", "gs", "az", "http", "https")
_URL = re.compile(rf"({'|'.join(SCHEMES)})://[^/]", re.IGNORECASE)
_BLOCK_BYTES = 1 << 20
_MOST_AHEAD = 8
"""Blocks that one request fetches at most, once reading goes straight on."""
_MOST_HELD = 24
_REFUSED = re.compile(r"\b(401 Unauthorized|403 Forbidden|InvalidAccessKeyId)\b")
_DENIED = "access is denied: check the credentials in the environment, and who may read there"
_TROUBLE = (BaseError, OSError)
"""What obstore raises; a missing object is Python's own FileNotFoundError."""
_RETRIES: Any = {
    "max_retries": 4,
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


def remote_state(url: str) -> RemoteState:
    """Raises `MediaError`: `missing` or `unreadable`."""
    store, key = _place(url)
    try:
        meta = obstore.head(store, key)
    except _TROUBLE as error:
        raise _media_error(url, error) from None
    text = meta["e_tag"] or meta["last_modified"].isoformat()
    tag = hashlib.blake2b(text.encode(), digest_size=7).digest()
    return RemoteState(num_bytes=meta["size"], tag=int.from_bytes(tag, "big"))


def remote_keys(url: str) -> list[str]:
    """URLs of all objects whose key begins with that of a folder, or of the one object, in order.

    Raises `VfmError` where the store refuses or does not exist.
    """
    root, key = _split(url)
    store, _ = _place(url)
    prefix = key.rstrip("/")
    try:
        found = [item["path"] for batch in obstore.list(store, prefix or None) for item in batch]
        if not found and prefix:
            found = [obstore.head(store, key)["path"]]
    except _TROUBLE as error:
        missing = "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error)
        text = f"{url}: there is no such bucket" if missing else _media_error(url, error).detail
        raise VfmError(text) from None
    return [f"{root}/{path}" for path in sorted(found)]


class RemoteFile(io.RawIOBase):
    """One object as a file that can be read and sought. Holds up to 24 MiB; reading on fetches
    ahead, up to 8 MiB at once, jumping about fetches 1 MiB.

    Raises `MediaError`, `missing` or `unreadable`, from any method that reaches the store.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._store, self._key = _place(url)
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
        end = min(start + self._ahead * _BLOCK_BYTES, self.num_bytes)
        self.num_requests += 1
        try:
            data = bytes(obstore.get_range(self._store, self._key, start=start, end=end))
        except _TROUBLE as error:
            raise _media_error(self.url, error) from None
        if len(data) != end - start:
            raise MediaError("unreadable", f"{self.url} is shorter than it was: {len(data)} bytes")
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


def _split(url: str) -> tuple[str, str]:
    """(store, key): `az` names an account and a container, the others one thing."""
    scheme, _, rest = url.partition("://")
    num = 2 if scheme.lower() == "az" else 1
    parts = rest.split("/", num)
    return f"{scheme}://{'/'.join(parts[:num])}", parts[num] if len(parts) > num else ""


def _place(url: str) -> tuple[Any, str]:
    root, key = _split(url)
    try:
        return from_url(root, client_options=_CLIENT, retry_config=_RETRIES), key
    except _TROUBLE as error:
        raise VfmError(f"{url}: {_first_line(error)}") from None


def _media_error(url: str, error: Exception) -> MediaError:
    if isinstance(error, NotFoundError | FileNotFoundError):
        return MediaError("missing", f"{url} does not exist")
    text = str(error)
    denied = isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError)
    if denied or _REFUSED.search(text):
        return MediaError("unreadable", f"{url}: {_DENIED}")
    return MediaError("unreadable", f"{url}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    """What a store said, without the traces that come after it."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
