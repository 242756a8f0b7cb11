"""Encoded clips to WebDataset tars, in an order that depends on ids only."""

import hashlib
import io
import json
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from common.errors import DataError
from common.storage import atomic_path, write_atomic
from common.store_path import Place, bytes_of, remove
from curation.spool import EncodedClip
from dataloading.buckets import Buckets
from dataloading.schema import (
    MANIFEST_NAME,
    IndexRow,
    Manifest,
    ShardInfo,
    index_bytes,
    index_path,
    read_index,
    read_manifest,
    write_manifest,
)

_TAR_BLOCK = 512
_AT_ONCE = 16
"""Shards that are looked up at once; in a store each answer takes its time."""


@dataclass(frozen=True, kw_only=True)
class ShardedClip:
    """A clip as a shard holds it. What it says of the caption may since be said otherwise."""

    caption: str
    caption_source: str | None
    encoded: EncodedClip
    tar: Place
    offset: int

    def read(self) -> bytes:
        """The video's bytes."""
        with self.tar.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.encoded.num_bytes)


def read_sharded(shards: Place) -> "tuple[Manifest, Sharded]":
    """The manifest of a folder, empty where there is none, and all clips that its shards hold."""
    try:
        manifest = read_manifest(shards) if (shards / MANIFEST_NAME).is_file() else Manifest()
    except NotADirectoryError:
        manifest = Manifest()
    return manifest, Sharded(shards, manifest)


class Sharded(Mapping[str, ShardedClip]):
    """All clips that the shards of a folder hold, by id. They are looked up when they are first
    asked for, some shards at once.

    Asking raises `DataError` where a shard that the manifest names is gone or damaged.
    """

    def __init__(self, shards: Place, manifest: Manifest) -> None:
        self._shards = shards
        self._manifest = manifest

    @cached_property
    def _clips(self) -> dict[str, ShardedClip]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = pool.map(self._of, self._manifest.shards)
            return {clip.encoded.clip_id: clip for clips in found for clip in clips}

    def videos(self) -> set[str]:
        """Ids of the videos that they come from."""
        return {clip.encoded.content_id for clip in self.values()}

    def _of(self, shard: ShardInfo) -> list[ShardedClip]:
        path = self._shards / shard.path
        rows = read_index(self._shards / shard.index_path).to_pylist()
        try:
            if bytes_of(path) != shard.num_bytes:
                raise ValueError(f"{bytes_of(path)} bytes, not {shard.num_bytes}")
            told = self._told(shard)
            if told is None:
                with path.open("rb") as tar:
                    told = [_about(tar, row) for row in rows]
            return [
                ShardedClip(
                    caption=caption,
                    caption_source=source,
                    encoded=_encoded(row),
                    tar=path,
                    offset=row["video_offset"],
                )
                for row, (caption, source) in zip(rows, told, strict=True)
            ]
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{path} is gone or damaged ({error}): bring it back, or choose another output "
                "folder"
            ) from error

    def _told(self, shard: ShardInfo) -> list[tuple[str, str | None]] | None:
        """The captions in a shard by the note of who made it, which saves reading every clip's
        JSON; None where there is no note on this very shard."""
        try:
            note = json.loads(note_path(self._shards, shard.path).read_bytes())
        except (OSError, ValueError):
            return None
        return note["captions"] if note["sha256"] == shard.sha256 else None

    def __getitem__(self, clip_id: str) -> ShardedClip:
        return self._clips[clip_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clips)

    def __len__(self) -> int:
        return len(self._clips)


def note_path(shards: Place, shard_path: str) -> Place:
    """Where the ledger keeps what a tar says of its captions."""
    return shards.parent / "ledger" / "packed" / f"{shard_path}.json"


def sweep_shards(shards: Place, manifest: Manifest) -> None:
    """Removes tars that the manifest does not name, with what belongs to them. A run that was
    killed before the manifest grew leaves such a tar; the clips in it are sharded again."""
    named = {shard.path for shard in manifest.shards}
    for tar in shards.rglob("*.tar"):
        path = str(PurePosixPath(tar.relative_to(shards)))  # pyright: ignore[reportArgumentType]
        if path not in named:
            remove([tar, shards / index_path(path), tar.with_name(f"{tar.name}.idx")])


def _about(tar: Any, row: Mapping[str, Any]) -> tuple[str, str | None]:
    tar.seek(row["json_offset"])
    about = json.loads(tar.read(row["json_bytes"]))
    return about["caption"], about["caption_source"]


def _encoded(row: Mapping[str, Any]) -> EncodedClip:
    """What an index says of a clip."""
    same = ("clip_id", "num_frames", "width", "height", "duration_s", "fps", "keyframes_s")
    values = {name: row[name] for name in same}
    video_id = row["clip_id"].partition("-")[0]
    return EncodedClip(content_id=video_id, span="", num_bytes=row["video_bytes"], **values)


@dataclass(kw_only=True)
class _Queue:
    """One bucket: clips still to come, in order, and those of the tar being filled."""

    waiting: list[str] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)
    filled_bytes: int = 0


class Packer:
    """Packs clips into tars as they arrive, in any order of arrival, with equal result.

    A tar is closed when the next clip in order of id would exceed the target, so its content
    depends on the ids and sizes alone. A finished tar and its index are on disk before the
    manifest names them.

    Args:
        shards: folder of the shards.
        expected: clip id to bucket, of all clips that will be `add`ed or `skip`ped.
        describe: clip id to the content of its JSON member.
        buckets: what the manifest says of them.
        content: the bytes of an encoded clip, by id.
        packed: told the ids of clips once the manifest names their tar.
        noted: whether the ledger beside the shards gets a note on each tar, see `note_path`.
        may_write: called before anything is replaced; raises where that is another's by now.
    """

    def __init__(
        self,
        shards: Place,
        manifest: Manifest,
        expected: Mapping[str, str],
        describe: Mapping[str, dict[str, Any]],
        target_bytes: int,
        buckets: Buckets,
        *,
        content: Callable[[str], bytes],
        packed: Callable[[Sequence[str]], None],
        noted: bool = False,
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        self._shards = shards
        self._content = content
        self._packed = packed
        self._noted = noted
        self._may_write = may_write
        self._manifest = manifest
        self._describe = describe
        self._target_bytes = target_bytes
        self._buckets = buckets
        self._bucket_of = dict(expected)
        self._queues: dict[str, _Queue] = defaultdict(_Queue)
        for clip_id in sorted(expected, reverse=True):
            self._queues[expected[clip_id]].waiting.append(clip_id)
        self._encoded: dict[str, EncodedClip] = {}
        self._skipped: set[str] = set()

    def add(self, clip: EncodedClip) -> None:
        """Takes a clip whose content can be had."""
        self._encoded[clip.clip_id] = clip
        self._advance(self._bucket_of[clip.clip_id])

    def skip(self, clip_id: str) -> None:
        """This clip will not come."""
        self._skipped.add(clip_id)
        self._advance(self._bucket_of[clip_id])

    def finish(self) -> Manifest:
        """Closes the last tar of every bucket."""
        for bucket in sorted(self._queues):
            queue = self._queues[bucket]
            assert not queue.waiting, f"{bucket}: {queue.waiting} neither came nor was skipped"
            if queue.filled:
                self._close(bucket, queue)
        return self._manifest

    def _advance(self, bucket: str) -> None:
        queue = self._queues[bucket]
        while queue.waiting:
            clip_id = queue.waiting[-1]
            if clip_id in self._skipped:
                queue.waiting.pop()
                continue
            if clip_id not in self._encoded:
                return
            num_bytes = self._encoded[clip_id].num_bytes
            if queue.filled and queue.filled_bytes + num_bytes > self._target_bytes:
                self._close(bucket, queue)
            queue.waiting.pop()
            queue.filled.append(clip_id)
            queue.filled_bytes += num_bytes

    def _close(self, bucket: str, queue: _Queue) -> None:
        number = sum(shard.path.startswith(f"{bucket}/") for shard in self._manifest.shards)
        path = f"{bucket}/{bucket}-{number:06d}.tar"
        self._may_write()
        with atomic_path(self._shards / path) as tar:
            rows = self._write_tar(tar, queue.filled)
            num_bytes, sha256 = tar.stat().st_size, _sha256(tar)
        index = index_bytes(rows)
        write_atomic(self._shards / index_path(path), index)
        if self._noted:
            abouts = [self._describe[clip_id] for clip_id in queue.filled]
            captions = [(about["caption"], about["caption_source"]) for about in abouts]
            note = json.dumps({"sha256": sha256, "captions": captions}).encode()
            write_atomic(note_path(self._shards, path), note)
        shard = ShardInfo(
            path=path,
            num_clips=len(rows),
            num_bytes=num_bytes,
            duration_s=round(sum(row.duration_s for row in rows), 6),
            sha256=sha256,
            index_sha256=hashlib.sha256(index).hexdigest(),
        )
        # By path, so that the order in which buckets fill up leaves no trace.
        shards = sorted([*self._manifest.shards, shard], key=lambda s: s.path)
        self._manifest = Manifest(shards=shards, buckets=self._buckets)
        self._may_write()
        write_manifest(self._shards, self._manifest)
        self._packed(queue.filled)
        queue.filled, queue.filled_bytes = [], 0

    def _write_tar(self, path: Path, clip_ids: list[str]) -> list[IndexRow]:
        rows = []
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for clip_id in clip_ids:
                clip = self._encoded[clip_id]
                video = self._content(clip_id)
                about = self._describe[clip_id]
                text = json.dumps(about, sort_keys=True, ensure_ascii=False).encode()
                video_offset = _add(tar, f"{clip_id}.mp4", video)
                json_offset = _add(tar, f"{clip_id}.json", text)
                rows.append(
                    IndexRow(
                        clip_id=clip_id,
                        video_offset=video_offset,
                        video_bytes=len(video),
                        json_offset=json_offset,
                        json_bytes=len(text),
                        width=clip.width,
                        height=clip.height,
                        num_frames=clip.num_frames,
                        fps=clip.fps,
                        duration_s=clip.duration_s,
                        caption_bytes=len(about["caption"].encode()),
                        keyframes_s=clip.keyframes_s,
                    )
                )
        return rows


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> int:
    """Adds a member without owner or date; returns where its content begins."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o644
    offset = tar.offset + _TAR_BLOCK
    tar.addfile(member, io.BytesIO(data))
    return offset


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
