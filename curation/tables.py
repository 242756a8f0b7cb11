"""The tables of a curated folder: `videos.parquet`, `clips.parquet`, `failed.jsonl`."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from common.storage import atomic_path, write_atomic
from common.store_path import Place
from curation.measures.camera import camera_label
from curation.scores import SCORES, Crop, Score


@dataclass(frozen=True, kw_only=True)
class VideoRow:
    """One source. `status`: `ok`, `salvaged` (read past damage), `refused` or `duplicate`."""

    video_id: str
    source: str
    status: str
    reason: str | None
    detail: str | None
    duration_s: float
    lost_s: float
    width: int | None
    height: int | None
    fps: float | None
    codec: str | None
    pix_fmt: str | None
    rotation_deg: int | None
    has_audio: bool | None
    num_bytes: int | None
    num_frames: int | None
    num_errors: int | None
    num_clips: int
    analysis_hash: str
    notes: str | None = None
    """Video streams that were not used, and high dynamic range."""


@dataclass(frozen=True, kw_only=True)
class ClipRow:
    """One clip, kept or not; sizes are those of the source as displayed.

    `failed_reason` marks one that should have been kept but could not be encoded.
    """

    clip_id: str
    video_id: str
    source: str
    start_us: int
    end_us: int
    kept: bool
    reject_reason: str | None
    failed_reason: str | None
    width: int
    height: int
    fps: float
    num_frames: int
    caption: str | None
    caption_source: str | None
    scores: Mapping[str, Score]
    crop: Crop | None
    thumbnail: str | None
    bucket: str | None
    analysis_hash: str
    transcode_hash: str | None

    @property
    def seconds(self) -> float:
        return (self.end_us - self.start_us) / 1e6


CROP = ("crop_left", "crop_top", "crop_width", "crop_height")
"""Columns of the box inside black bars, in pixels as displayed."""
_MOVES = ("pan", "tilt", "zoom", "roll")
_VIDEO_SCHEMA = pa.schema(
    [
        ("video_id", pa.string()),
        ("source", pa.string()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("duration_s", pa.float64()),
        ("lost_s", pa.float64()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("fps", pa.float64()),
        ("codec", pa.string()),
        ("pix_fmt", pa.string()),
        ("rotation_deg", pa.int32()),
        ("has_audio", pa.bool_()),
        ("num_bytes", pa.int64()),
        ("num_frames", pa.int64()),
        ("num_errors", pa.int64()),
        ("num_clips", pa.int64()),
        ("analysis_hash", pa.string()),
        ("notes", pa.string()),
    ]
)
_CLIP_SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("video_id", pa.string()),
        ("source", pa.string()),
        ("start_s", pa.float64()),
        ("end_s", pa.float64()),
        ("kept", pa.bool_()),
        ("reject_reason", pa.string()),
        ("failed_reason", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("fps", pa.float64()),
        ("num_frames", pa.int64()),
        ("caption", pa.string()),
        ("caption_source", pa.string()),
        *((f"score_{name}", pa.float64()) for name in SCORES),
        *((f"valid_{name}", pa.bool_()) for name in SCORES),
        ("camera", pa.string()),
        *((name, pa.int32()) for name in CROP),
        ("thumbnail", pa.string()),
        ("bucket", pa.string()),
        ("analysis_hash", pa.string()),
        ("transcode_hash", pa.string()),
    ]
)


def write_videos(path: Place, rows: Iterable[VideoRow]) -> None:
    """Rows in order of source name; equal rows give equal bytes."""
    ordered = sorted(rows, key=lambda row: (row.source, row.video_id))
    _write(path, pa.Table.from_pylist([asdict(row) for row in ordered], schema=_VIDEO_SCHEMA))


def write_clips(path: Place, rows: Iterable[ClipRow]) -> None:
    """Rows in order of source name and time; equal rows give equal bytes."""
    ordered = sorted(rows, key=lambda row: (row.source, row.start_us, row.clip_id))
    boxes = [row.crop or (None,) * len(CROP) for row in ordered]
    columns: dict[str, list[Any]] = {
        "start_s": [row.start_us / 1e6 for row in ordered],
        "end_s": [row.end_us / 1e6 for row in ordered],
        "camera": [_camera(row.scores) for row in ordered],
        **{name: [box[i] for box in boxes] for i, name in enumerate(CROP)},
    }
    for name in SCORES:
        scores = [row.scores[name] for row in ordered]
        columns[f"score_{name}"] = [score.value if score.valid else None for score in scores]
        columns[f"valid_{name}"] = [score.valid for score in scores]
    for name in _CLIP_SCHEMA.names:
        if name not in columns:
            columns[name] = [getattr(row, name) for row in ordered]
    ordered_columns = {name: columns[name] for name in _CLIP_SCHEMA.names}
    _write(path, pa.Table.from_pydict(ordered_columns, schema=_CLIP_SCHEMA))


def _camera(scores: Mapping[str, Score]) -> str | None:
    moves = {name: scores[name] for name in _MOVES}
    known = all(score.valid for score in moves.values())
    return camera_label({name: s.value for name, s in moves.items()}) if known else None


def write_failed(path: Place, entries: Iterable[dict[str, Any]]) -> None:
    """One JSON object per line, in order of id and stage."""
    ordered = sorted(entries, key=lambda e: (e["source"], e["id"], e["stage"], e["reason"]))
    lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in ordered]
    write_atomic(path, "".join(lines).encode())


def _write(path: Place, table: pa.Table) -> None:
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)
