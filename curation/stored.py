"""What an earlier run wrote into a curated folder, read back."""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import DataError
from common.store_path import Place
from curation.accounting import Fate
from curation.ledger import KnownSource
from curation.results import Collected
from curation.scores import SCORES, Score, Scores
from curation.tables import CROP, ClipRow, VideoRow


def read_collected(folder: Place, sources: Sequence[KnownSource]) -> tuple[Collected, Any]:
    """A curated folder as `collect` gave it, and its summary. Nothing is decoded.

    Raises `DataError` where a table is damaged or was written by another version.
    """
    try:
        clips = _clips(_table(folder / "clips.parquet"))
        videos = [VideoRow(**row) for row in _table(folder / "videos.parquet").to_pylist()]
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        lines = (folder / "failed.jsonl").read_text(encoding="utf-8").split("\n")
        failed = [json.loads(line) for line in lines if line]
        others = _others(summary, clips)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the tables of {folder} are damaged or of another version of vfm "
            f"({type(error).__name__}: {error}): give its `vfm curate` once more"
        ) from error
    return Collected.restored(sources, videos, clips, failed, others), summary


def _table(path: Place) -> pa.Table:
    return pq.read_table(pa.BufferReader(path.read_bytes()))


_OTHERWISE = {"start_us", "end_us", "scores", "crop"}
_SAME = [f.name for f in dataclasses.fields(ClipRow) if f.name not in _OTHERWISE]


def _clips(table: pa.Table) -> list[ClipRow]:
    """Column by column, which is several times faster than row by row."""
    columns = {name: table[name].to_pylist() for name in table.column_names}
    scores = zip(*(_scores(columns, name) for name in SCORES), strict=True)
    boxes = zip(*(columns[name] for name in CROP), strict=True)
    spans = zip(columns["start_s"], columns["end_s"], strict=True)
    same = zip(*(columns[name] for name in _SAME), strict=True)
    return [
        ClipRow(
            **dict(zip(_SAME, values, strict=True)),
            start_us=round(start_s * 1e6),
            end_us=round(end_s * 1e6),
            scores=Scores(dict(zip(SCORES, of_clip, strict=True))),
            crop=None if None in box else (box[0], box[1], box[2], box[3]),
        )
        for values, (start_s, end_s), of_clip, box in zip(same, spans, scores, boxes, strict=True)
    ]


def _scores(columns: dict[str, list[Any]], name: str) -> list[Score]:
    if f"score_{name}" not in columns:  # measured by an earlier version, which had no such score
        return [Score(0.0, False)] * len(columns["clip_id"])
    pairs = zip(columns[f"score_{name}"], columns[f"valid_{name}"], strict=True)
    return [Score(value or 0.0, valid) for value, valid in pairs]


def _others(summary: dict[str, Any], clips: Sequence[ClipRow]) -> list[Fate]:
    """Footage that never became a clip: what the summary counts and the clips do not."""
    of_clips: Counter[tuple[str, str]] = Counter()
    for clip in clips:
        if clip.failed_reason is not None:
            of_clips["failed", clip.failed_reason] += clip.end_us - clip.start_us
        elif not clip.kept:
            of_clips["rejected", str(clip.reject_reason)] += clip.end_us - clip.start_us
    fates = []
    for kind in ("rejected", "failed"):
        for reason, seconds in summary[f"seconds_{kind}"].items():
            left_us = round(seconds * 1e6) - of_clips[kind, reason]
            if left_us or (kind, reason) not in of_clips:
                fates.append(Fate(kind=kind, reason=reason, duration_us=left_us))
    return fates
