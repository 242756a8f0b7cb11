"""What the report page's script reads: clips as columns, and the rules that decide on them.

A name stands once per table, not once per clip, and numbers travel as bytes. Scores are exact, so
that the page counts as `curation.decide` does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common.pages import packed
from curation.decide import RULES
from curation.scores import UNITS

Columns = Mapping[str, list[Any]]


def clip_columns(
    clips: Columns,
    videos: Columns,
    labels: Sequence[int],
    have_thumb: set[str],
    summary: Mapping[str, Any],
) -> dict[str, Any]:
    """The data block `clips`; see the top of `report.js` for its fields.

    Args:
        clips: columns of `clips.parquet`; those that are absent leave their part of the page out.
        videos: columns of `videos.parquet`, perhaps none.
        labels: per clip the number of its label.
        have_thumb: ids of the clips with a thumbnail.
    """
    decided_by = summary.get("decided_by")
    columns: dict[str, Any] = {
        "count": len(clips["clip_id"]),
        "id": clips["clip_id"],
        "label": packed(np.array(labels, np.uint16)),
        "thumb": packed(np.array([i in have_thumb for i in clips["clip_id"]], np.uint8)),
        "scores": _scores(clips),
        "units": UNITS,
        "rules": rules(summary, clips),
        "decided_by": decided_by["setting"] if decided_by else None,
    }
    if "start_s" in clips and "end_s" in clips:
        for name in ("start", "end"):
            columns[f"{name}_us"] = packed(np.rint(_numbers(clips[f"{name}_s"]) * 1e6))
    if "fps" in clips:
        columns["fps"] = packed(_numbers(clips["fps"]))
    if "num_frames" in clips:
        columns["num_frames"] = packed(_numbers(clips["num_frames"]))
    if "width" in clips and "height" in clips:
        sizes = zip(clips["width"], clips["height"], strict=True)
        columns["size"] = _dictionary([f"{width} \u00d7 {height}" for width, height in sizes])
    for name in ("caption", "source", "caption_source", "bucket", "camera"):
        if name in clips:
            columns[name] = _dictionary([value or "" for value in clips[name]])
    if "source" in columns and "duration_s" in videos:
        length = dict(zip(videos["source"], videos["duration_s"], strict=True))
        columns["source"]["duration_s"] = [length.get(n) for n in columns["source"]["values"]]
    return columns


def rules(summary: Mapping[str, Any], clips: Columns) -> list[dict[str, Any]]:
    """Every limit that a score of the table may have, with its value in this run, or null.

    `limit` is in the score's unit; `typed` is what was asked for where that is no number, such as
    `p20`.
    """
    found = []
    decided = summary.get("decided_by")
    for rule in RULES:
        bounds = summary.get("thresholds", {}).get(rule.score, {})
        limit, typed = bounds.get(rule.side), bounds.get("typed", {}).get(rule.side)
        if f"score_{rule.score}" in clips:
            found.append(
                {
                    "score": rule.score,
                    "side": rule.side,
                    "setting": rule.setting,
                    "reason": rule.reason,
                    "limit": limit if isinstance(limit, int | float) else None,
                    "typed": typed if isinstance(typed, str) and not decided else None,
                }
            )
    return found


def _scores(clips: Columns) -> dict[str, dict[str, str]]:
    """By name; NaN where a clip has no valid measure."""
    found = {}
    for name, values in clips.items():
        if name.startswith("score_"):
            score = name.removeprefix("score_")
            numbers = _numbers(values)
            if f"valid_{score}" in clips:
                numbers[~np.array(clips[f"valid_{score}"], bool)] = np.nan
            found[score] = packed(numbers)
    return found


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    """`float64 [n]`, NaN for None."""
    return np.array(values, np.float64)


def _dictionary(values: Sequence[str]) -> dict[str, Any]:
    """A column of texts: each different one once, and per row its place."""
    place: dict[str, int] = {}
    rows = [place.setdefault(value, len(place)) for value in values]
    return {"values": list(place), "rows": packed(np.array(rows, np.uint32))}
