"""Encoded clips to WebDataset tars, in an order that depends on ids only."""

import hashlib
import io
import json
import tarfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import DataError
from common.storage import atomic_path
from curation.stages.transcode import EncodedClip
from dataloading.buckets import Buckets
from dataloading.schema import (
    MANIFEST_NAME,
    IndexRow,
    Manifest,
    ShardInfo,
    index_path,
    read_index,
    read_manifest,
    write_index,
    write_manifest,
)

_TAR_BLOCK = 512


@dataclass(frozen=True, kw_only=True)
class ShardedClip:
    """A clip as a shard holds it. What it says of the caption may since be said otherwise."""

    caption: str
    caption_source: str | None
    encoded: EncodedClip
    tar: Path
    offset: int

    def read(self) -> bytes:
        """The video's bytes."""
        with self.tar.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.encoded.num_bytes)


def read_sharded(shards: Path) -> tuple[Manifest, dict[str, ShardedClip]]:
    """The manifest of a folder, empty where there is none, and all clips that its shards hold.

    Raises `DataError` where a shard that the manifest names is gone or damaged.
    """
    if not (shards / MANIFEST_NAME).exists():
        return Manifest(), {}
    manifest = read_manifest(shards)
    clips: dict[str, ShardedClip] = {}
    for shard in manifest.shards:
        rows = read_index(shards / shard.index_path)
        path = shards / shard.path
        try:
            with path.open("rb") as tar:
                for row in rows.to_pylist():
                    tar.seek(row["json_offset"])
                    about = json.loads(tar.read(row["json_bytes"]))
                    clips[row["clip_id"]] = ShardedClip(
                        caption=about["caption"],
                        caption_source=about["caption_source"],
                        encoded=_encoded(row, about["video_id"]),
                        tar=path,
                        offset=row["video_offset"],
                    )
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{path} is gone or damaged ({error}): bring it back, or choose another output "
                "folder"
            ) from error
    return manifest, clips


def sweep_shards(shards: Path, manifest: Manifest) -> None:
    """Removes tars that the manifest does not name, with what belongs to them. A run that was
    killed before the manifest grew leaves such a tar; the clips in it are sharded again."""
    named = {shard.path for shard in manifest.shards}
    for tar in shards.rglob("*.tar"):
        path = tar.relative_to(shards).as_posix()
        if path not in named:
            for left in (tar, shards / index_path(path), tar.with_name(f"{tar.name}.idx")):
                left.unlink(missing_ok=True)


def _encoded(row: Mapping[str, Any], video_id: str) -> EncodedClip:
    """What an index says of a clip."""
    same = ("clip_id", "num_frames", "width", "height", "duration_s", "fps", "keyframes_s")
    values = {name: row[name] for name in same}
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
    """

    def __init__(
        self,
        shards: Path,
        manifest: Manifest,
        expected: Mapping[str, str],
        describe: Mapping[str, dict[str, Any]],
        target_bytes: int,
        buckets: Buckets,
        *,
        content: Callable[[str], bytes],
        packed: Callable[[Sequence[str]], None],
    ) -> None:
        self._shards = shards
        self._content = content
        self._packed = packed
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
        rows = self._write_tar(self._shards / path, queue.filled)
        index = self._shards / index_path(path)
        write_index(index, rows)
        tar = self._shards / path
        shard = ShardInfo(
            path=path,
            num_clips=len(rows),
            num_bytes=tar.stat().st_size,
            duration_s=round(sum(row.duration_s for row in rows), 6),
            sha256=_sha256(tar),
            index_sha256=_sha256(index),
        )
        # By path, so that the order in which buckets fill up leaves no trace.
        shards = sorted([*self._manifest.shards, shard], key=lambda s: s.path)
        self._manifest = Manifest(shards=shards, buckets=self._buckets)
        write_manifest(self._shards, self._manifest)
        self._packed(queue.filled)
        queue.filled, queue.filled_bytes = [], 0

    def _write_tar(self, path: Path, clip_ids: list[str]) -> list[IndexRow]:
        rows = []
        with (
            atomic_path(path) as temporary,
            tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar,
        ):
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
