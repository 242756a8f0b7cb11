"""All clips of curated folders, from manifests and shard indexes, without opening a video."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from common.errors import DataError
from common.store_path import Place
from dataloading.folder import sizes_below
from dataloading.schema import EncodedWith, Manifest, ShardInfo, read_index, read_manifest


@dataclass(frozen=True, kw_only=True)
class ClipLocation:
    """Where one clip's two members lie in its shard."""

    clip_id: str
    shard: Place
    video_offset: int
    video_bytes: int
    json_offset: int
    json_bytes: int
    width: int
    height: int
    num_frames: int
    suffix: str = ".mp4"
    """Of what stands under `video`."""


class ClipTable:
    """Clips by ordinal: folder by folder, in each by the manifest's order of shards and rows.

    Attributes:
        num_frames: `int64 [n]`, of pictures.
        width, height: `int64 [n]`, pixels as displayed.
        fps, duration_s: `float64 [n]`.
        num_bytes: `int64 [n]`, of the video and the JSON together.
        shard_start: `int64 [num_shards + 1]`, the first ordinal of each shard.
        folder_start: `int64 [num_folders + 1]`, the first shard of each folder.
        encoded: what the folders were encoded with, where they hold windows and no clips.
        splits: for each of such windows, `train` or `val`.
        fingerprints: one for each folder; it changes when any of its indexes or shards does.
    """

    def __init__(self, paths: list[Place]) -> None:
        """Checks that every shard is there, whole by its size, and as its index says, and that no
        two clips have one id: they would be one sample to every random draw.

        Raises `DataError` naming the files at fault.
        """
        tables: list[pa.Table] = []
        folders: list[int] = [0]
        self.shards: list[Place] = []
        self._infos: list[ShardInfo] = []
        self.fingerprints: list[str] = []
        encoded: list[EncodedWith | None] = []
        for path in paths:
            folder = path / "shards"
            manifest = read_manifest(folder)
            if not manifest.shards:
                raise DataError(f"{folder} has no shards: nothing was kept when it was curated")
            _check_files(folder, manifest)
            tables += [_checked_index(folder, shard) for shard in manifest.shards]
            self.shards += [folder / shard.path for shard in manifest.shards]
            self.fingerprints.append(_fingerprint(manifest))
            encoded.append(manifest.encoded)
            folders.append(len(self.shards))
            self._infos += manifest.shards
        self._table = pa.concat_tables(tables)
        _check_ids(" and ".join(map(str, paths)), self._table["clip_id"])
        self.shard_start = np.cumsum([0, *(table.num_rows for table in tables)], dtype=np.int64)
        self.folder_start = np.array(folders, dtype=np.int64)
        self.encoded = encoded[0]
        if any(other != self.encoded for other in encoded):
            raise DataError(
                f"{' and '.join(map(str, paths))} cannot be blended: they hold clips and encoded "
                "windows, or windows that were encoded otherwise"
            )
        self.num_frames = self._column("num_frames", np.int64)
        self.width = self._column("width", np.int64)
        self.height = self._column("height", np.int64)
        self.fps = self._column("fps", np.float64)
        self.duration_s = self._column("duration_s", np.float64)
        self.num_bytes = self._column("video_bytes", np.int64) + self._column(
            "json_bytes", np.int64
        )

    def __len__(self) -> int:
        return self._table.num_rows

    def clip_ids(self, ordinals: np.ndarray) -> list[str]:
        return self._table["clip_id"].take(pa.array(ordinals, type=pa.int64())).to_pylist()

    def location(self, ordinal: int) -> ClipLocation:
        row = self._table.slice(ordinal, 1)
        shard = int(np.searchsorted(self.shard_start, ordinal, side="right")) - 1
        value = {name: row[name][0].as_py() for name in row.column_names}
        return ClipLocation(
            clip_id=value["clip_id"],
            shard=self.shards[shard],
            video_offset=value["video_offset"],
            video_bytes=value["video_bytes"],
            json_offset=value["json_offset"],
            json_bytes=value["json_bytes"],
            width=value["width"],
            height=value["height"],
            num_frames=value["num_frames"],
            suffix=".safetensors" if self.encoded else ".mp4",
        )

    @cached_property
    def splits(self) -> np.ndarray:
        named = [shard.path.partition("/")[0] for shard in self._infos]
        return np.repeat(named, np.diff(self.shard_start))

    def _column(self, name: str, dtype: type) -> np.ndarray:
        return self._table[name].to_numpy().astype(dtype)


def _check_files(folder: Place, manifest: Manifest) -> None:
    faults = []
    size_of = sizes_below(folder)
    for shard in manifest.shards:
        try:
            size = size_of(shard.path)
        except FileNotFoundError:
            faults.append(f"{shard.path} is missing")
            continue
        except OSError as error:
            faults.append(f"{shard.path} cannot be read: {error.strerror}")
            continue
        if size != shard.num_bytes:
            faults.append(f"{shard.path} has {size} bytes, the manifest says {shard.num_bytes}")
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise DataError(
            f"{folder}: {'; '.join(faults[:5])}{more}. Copy the folder again, or curate it again"
        )


def _check_ids(named: str, ids: pa.ChunkedArray) -> None:
    if len(ids.unique()) == len(ids):
        return
    twice = [row["values"] for row in ids.value_counts().to_pylist() if row["counts"] > 1]
    more = f" and {len(twice) - 5} more" if len(twice) > 5 else ""
    raise DataError(
        f"{named} holds clips more than once: {', '.join(twice[:5])}{more}; remove from the "
        "manifest the shards that repeat others, or curate again"
    )


def _checked_index(folder: Place, shard: ShardInfo) -> pa.Table:
    path = folder / shard.index_path
    table = read_index(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != shard.index_sha256 or table.num_rows != shard.num_clips:
        raise DataError(
            f"{path} is not the index that the manifest names ({table.num_rows} rows of "
            f"{shard.num_clips}, sha256 {digest[:12]} of {shard.index_sha256[:12]}); copy the "
            "folder again"
        )
    return table


def _fingerprint(manifest: Manifest) -> str:
    lines = [f"{s.path} {s.num_bytes} {s.sha256} {s.index_sha256}" for s in manifest.shards]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
