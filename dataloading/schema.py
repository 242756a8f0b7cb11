"""What curation hands to training: the layout of a folder of shards, and of a batch.

A curated folder holds `shards/BUCKET/NAME.tar` (plain WebDataset: `CLIP_ID.mp4`, `CLIP_ID.json`),
beside each tar an index `NAME.index.arrow` (one row per clip), and one `shards/manifest.json`.
Curation writes them, the loader reads them, and this module is the one owner of their format.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from common.errors import DataError
from common.storage import write_atomic
from common.store_path import Place
from dataloading.buckets import Buckets

MANIFEST_NAME = "manifest.json"
INDEX_SUFFIX = ".index.arrow"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class IndexRow:
    """One clip of a shard: where its bytes lie and what a packing plan needs to know of it.

    Offsets are those of the file's content inside the tar, past its 512-byte header, so that one
    range read gives the clip. `keyframes_s` are presentation times from the start of the clip.
    """

    clip_id: str
    video_offset: int
    video_bytes: int
    json_offset: int
    json_bytes: int
    width: int
    height: int
    num_frames: int
    fps: float
    duration_s: float
    caption_bytes: int
    keyframes_s: list[float]


INDEX_SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("video_offset", pa.int64()),
        ("video_bytes", pa.int64()),
        ("json_offset", pa.int64()),
        ("json_bytes", pa.int64()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("num_frames", pa.int32()),
        ("fps", pa.float64()),
        ("duration_s", pa.float64()),
        ("caption_bytes", pa.int32()),
        ("keyframes_s", pa.list_(pa.float64())),
    ]
)


@dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """One tar of the folder. `path` is relative to `shards/`, with forward slashes."""

    path: str
    num_clips: int
    num_bytes: int
    duration_s: float
    sha256: str
    index_sha256: str

    @property
    def index_path(self) -> str:
        return index_path(self.path)


@dataclass(frozen=True, kw_only=True)
class EncodedWith:
    """What the manifest of a folder of encoded windows says of them; see `dataloading.encoded`."""

    tokenizer: dict[str, Any]
    """`temporal`, `spatial` and `channels`; the tokenizer itself lies in `tokenizer/`."""
    text: dict[str, Any] | None
    """The configuration of the text encoder; none where captions are not encoded."""
    data: dict[str, Any]
    """`num_frames`, `size`, `resize` and `fps` of the windows."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All shards of a folder, in order of path."""

    shards: list[ShardInfo] = field(default_factory=list)
    buckets: Buckets | None = None
    """How the folders of the shards were chosen, where that is known."""
    encoded: EncodedWith | None = None
    """What the folder was encoded with, where it holds encoded windows and no clips."""
    format_version: int = FORMAT_VERSION


def index_path(shard_path: str) -> str:
    """`b/x-000000.tar` to `b/x-000000.index.arrow`."""
    return shard_path.removesuffix(".tar") + INDEX_SUFFIX


def write_index(path: Place, rows: list[IndexRow]) -> None:
    """Writes an index as an Arrow file, atomically; equal rows give equal bytes."""
    write_atomic(path, index_bytes(rows))


def index_bytes(rows: list[IndexRow]) -> bytes:
    """An index as an Arrow file."""
    columns = {f.name: [getattr(r, f.name) for r in rows] for f in fields(IndexRow)}
    table = pa.table(columns, schema=INDEX_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, INDEX_SCHEMA) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def read_table(path: Place) -> pa.Table:
    """An Arrow file, memory-mapped where it is local. Raises as `pyarrow`, or `OSError`."""
    local = isinstance(path, Path)
    source = pa.memory_map(str(path)) if local else pa.BufferReader(path.read_bytes())
    return pa.ipc.open_file(source).read_all()


def read_index(path: Place) -> pa.Table:
    """Reads an index. Raises `DataError` naming the file."""
    try:
        table = read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot read the shard index {path}: {error}") from error
    if table.schema != INDEX_SCHEMA:
        raise DataError(f"{path} is not a shard index of format {FORMAT_VERSION}")
    return table


def write_manifest(shards_dir: Place, manifest: Manifest) -> None:
    """Writes `manifest.json` atomically."""
    raw = asdict(manifest)
    if manifest.encoded is None:
        del raw["encoded"]
    text = json.dumps(raw, indent=1, sort_keys=True)
    write_atomic(shards_dir / MANIFEST_NAME, (text + "\n").encode())


def read_manifest(shards_dir: Place) -> Manifest:
    """Reads `manifest.json`. Raises `DataError` naming the file where it is missing or damaged."""
    path = shards_dir / MANIFEST_NAME
    try:
        raw = json.loads(path.read_bytes())
        if raw["format_version"] != FORMAT_VERSION:
            raise DataError(
                f"{path} has format {raw['format_version']}, this vfm reads {FORMAT_VERSION}; "
                "curate the folder again or use the vfm that wrote it"
            )
        shards = [ShardInfo(**shard) for shard in raw["shards"]]
        buckets = Buckets(**raw["buckets"]) if raw.get("buckets") else None
        encoded = EncodedWith(**raw["encoded"]) if raw.get("encoded") else None
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{path} does not exist: give the output folder of a finished `vfm curate`"
        ) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    return Manifest(shards=shards, buckets=buckets, encoded=encoded)
