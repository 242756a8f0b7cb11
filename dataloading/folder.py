"""Any folder of WebDataset tars: what kind it is, its shards, and what their headers list.

Three kinds are told apart: `curated` (ours, with a manifest and indexes), `energon` (prepared by
megatron-energon, with `.nv-meta`) and `webdataset` (tars and nothing else).
"""

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import yaml

from common.errors import DataError, MediaError
from common.ranges import Ranges
from common.storage import TEMPORARY_PREFIX
from common.store_path import Place, StorePath
from dataloading.energon import META_FOLDER
from dataloading.schema import MANIFEST_NAME, Manifest, read_manifest

VIDEO_SUFFIXES = ("mp4", "mkv", "webm", "mov", "avi", "m4v", "ts", "mpg", "mpeg")
TEXT_SUFFIXES = ("txt", "caption", "text")
_BLOCK = 512
_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ShardFolder:
    """`shards` are paths relative to `root`, with forward slashes; `counts` their stated numbers of
    samples, empty where nothing states them."""

    path: Place
    root: Place
    kind: str
    shards: list[str]
    counts: dict[str, int]
    manifest: Manifest | None = None


@dataclass(frozen=True, kw_only=True)
class Member:
    """A file of a tar: `num_bytes` of content from byte `offset` on, its header from `begin` on."""

    name: str
    begin: int
    offset: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class TarSample:
    """Files of one key that follow each other, as WebDataset groups them, by extension."""

    shard: str
    key: str
    parts: dict[str, Member]

    @property
    def video(self) -> Member | None:
        return self._first(VIDEO_SUFFIXES)

    @property
    def json(self) -> Member | None:
        return self._first(("json",))

    @property
    def text(self) -> Member | None:
        return self._first(TEXT_SUFFIXES)

    def _first(self, suffixes: tuple[str, ...]) -> Member | None:
        found = (m for ext, m in self.parts.items() if ext.rpartition(".")[2].lower() in suffixes)
        return next(found, None)


def open_folder(path: Place) -> ShardFolder:
    """Finds out what `path` is. Raises `DataError` in one line where it holds no shards."""
    if not path.is_dir():
        raise DataError(
            f"{path} is a file; give the folder it lies in"
            if path.exists()
            else f"there is no folder {path}"
        )
    inside = path / "shards"
    for root in (inside, path):
        if (root / MANIFEST_NAME).is_file() and root.name == inside.name:
            manifest = read_manifest(root)
            return ShardFolder(
                path=path,
                root=root,
                kind="curated",
                shards=[shard.path for shard in manifest.shards],
                counts={shard.path: shard.num_clips for shard in manifest.shards},
                manifest=manifest,
            )
    for root in (inside, path):
        if (root / META_FOLDER).is_dir():
            counts = energon_counts(root)
            return ShardFolder(
                path=path, root=root, kind="energon", shards=list(counts), counts=counts
            )
    shards = tars_below(path)
    if not shards:
        raise DataError(
            f"{path} holds no shards: neither shards/{MANIFEST_NAME} (vfm curate), {META_FOLDER} "
            "(megatron-energon) nor any .tar file"
        )
    return ShardFolder(path=path, root=path, kind="webdataset", shards=shards, counts={})


def tars_below(root: Place) -> list[str]:
    """All finished tars, relative to `root`, sorted."""
    if isinstance(root, StorePath):
        tars = [str(found.relative_to(root)) for found in root.rglob("*.tar")]
    else:
        tars = [p.relative_to(root).as_posix() for p in root.rglob("*.tar") if p.is_file()]
    return sorted(t for t in tars if not t.rpartition("/")[2].startswith(TEMPORARY_PREFIX))


def sizes_below(root: Place) -> Callable[[str], int]:
    """From a path below `root` to the size of that file; a store is asked once for all of them.

    What is returned raises `OSError` as `Path.stat` does.
    """
    if not isinstance(root, StorePath):
        return lambda name: (root / name).stat().st_size
    sizes = dict(root.keys())

    def of(name: str) -> int:
        if name not in sizes:
            raise FileNotFoundError(f"{root / name} does not exist")
        return sizes[name]

    return of


def energon_counts(root: Place) -> dict[str, int]:
    """Samples of each shard, as `.nv-meta` says. Raises `DataError` naming the file at fault."""
    meta = root / META_FOLDER
    path = next((p for n in ("json", "yaml") if (p := meta / f".info.{n}").is_file()), None)
    if path is None:
        raise DataError(f"{meta} holds neither .info.json nor .info.yaml; run `energon prepare`")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML
        return {str(name): int(count) for name, count in raw["shard_counts"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise DataError(f"{path} is damaged ({why}); run `energon prepare` again") from error


def list_tar(path: Place) -> tuple[list[Member], list[str]]:
    """The files of a tar in their order, and what is wrong with its structure, in sentences.

    A list that ends at damage holds what lies before it. Raises `DataError` where the file cannot
    be opened.
    """
    members: list[Member] = []
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    with file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for info in tar:
                    if info.isfile():
                        at = dict(begin=info.offset, offset=info.offset_data)
                        members.append(Member(name=info.name, num_bytes=info.size, **at))
                # Where a header is damaged, the standard library takes it for the end.
                end = tar.offset
        except (tarfile.TarError, OSError, ValueError, MediaError) as error:
            return members, [f"no readable tar after {len(members)} files: {error}"]
        if members and members[-1].offset + members[-1].num_bytes > size:
            return members, [f"ends at byte {size}, in the middle of {members[-1].name}"]
        file.seek(end)
        mark = file.read(2 * _BLOCK)
    if any(mark[:_BLOCK]):
        return members, [f"damaged header at byte {end}, after {len(members)} files"]
    if len(mark) < 2 * _BLOCK or any(mark):
        return members, [f"no end mark at byte {end}: it may have been cut off"]
    return members, []


def samples_of(shard: str, members: Iterable[Member]) -> Iterator[TarSample]:
    """Groups files as WebDataset does; files without an extension belong to no sample."""
    named = [(match, m) for m in members if (match := _KEY.fullmatch(m.name))]
    for key, group in groupby(named, key=lambda pair: pair[0][1]):
        yield TarSample(shard=shard, key=key, parts={match[2]: m for match, m in group})


def read_member(root: Place, shard: str, member: Member) -> bytes:
    """A file's content. Raises `DataError` where the shard cannot be read."""
    return Ranges().read(root / shard, member.num_bytes, member.offset)


def described(root: Place, sample: TarSample) -> tuple[dict[str, Any], str | None]:
    """What a sample's JSON says, and its caption: from there, else from a text file.

    Unreadable ones say nothing; `dataloading.verify` names them.
    """
    about: dict[str, Any] = {}
    if sample.json is not None:
        try:
            raw = json.loads(read_member(root, sample.shard, sample.json))
        except (ValueError, RecursionError):
            raw = None
        about = raw if isinstance(raw, dict) else {}
    caption = about.get("caption")
    if not isinstance(caption, str) and sample.text is not None:
        content = read_member(root, sample.shard, sample.text)
        caption = content.decode("utf-8", "replace")
    return about, caption if isinstance(caption, str) else None
