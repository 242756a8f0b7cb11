"""What an earlier run wrote into a curated folder, read back."""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import DataError
from curation.accounting import Fate
from curation.ledger import KnownSource
from curation.results import Collected
from curation.scores import SCORES, Score
from curation.tables import ClipRow, VideoRow


def read_collected(folder: Path, sources: Sequence[KnownSource]) -> tuple[Collected, Any]:
    """A curated folder as `collect` gave it, and its summary. Nothing is decoded.

    Raises `DataError` where a table is damaged or was written by another version.
    """
    try:
        clips = [_clip(row) for row in pq.read_table(folder / "clips.parquet").to_pylist()]
        videos = [VideoRow(**row) for row in pq.read_table(folder / "videos.parquet").to_pylist()]
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


_SAME = {field.name for field in dataclasses.fields(ClipRow)} - {"start_us", "end_us", "scores"}


def _clip(row: dict[str, Any]) -> ClipRow:
    scores = {
        name: Score(value=row[f"score_{name}"] or 0.0, valid=row[f"valid_{name}"])
        for name in SCORES
    }
    return ClipRow(
        **{name: row[name] for name in _SAME},
        start_us=round(row["start_s"] * 1e6),
        end_us=round(row["end_s"] * 1e6),
        scores=scores,
    )


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
