"""Clips labelled by hand: a CSV or JSON of clip ids and whether to keep them."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.errors import ConfigError

_WORDS = {"1": True, "true": True, "yes": True, "keep": True}
_WORDS |= {"0": False, "false": False, "no": False, "reject": False}


def read_labels(path: Path) -> dict[str, bool]:
    """Clip id to whether it shall be kept, as the report page saves them.

    A CSV has the columns `clip_id` and `keep`; a JSON is a list of objects with these keys, or one
    object of id to keep. Raises `ConfigError` that names the file, and what is wrong in it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        pairs = list(_json(text) if path.suffix == ".json" else _csv(text))
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"labels={path} cannot be read as labels: {error}") from error
    labels: dict[str, bool] = {}
    for clip_id, word in pairs:
        keep = _WORDS.get(str(word).strip().lower())
        if keep is None:
            raise ConfigError(f"labels={path}: {clip_id} has keep={word}; 1 keeps, 0 rejects")
        if labels.setdefault(clip_id, keep) != keep:
            raise ConfigError(f"labels={path}: {clip_id} is both kept and rejected: leave one")
    if not labels:
        raise ConfigError(f"labels={path} labels no clip")
    return labels


def _csv(text: str) -> Iterator[tuple[str, Any]]:
    rows = csv.DictReader(text.splitlines())
    if not {"clip_id", "keep"} <= set(rows.fieldnames or ()):
        raise ValueError("its first line must be clip_id,keep")
    for row in rows:
        yield row["clip_id"], row["keep"]


def _json(text: str) -> Iterator[tuple[str, Any]]:
    content = json.loads(text)
    if isinstance(content, dict):
        yield from content.items()
        return
    for entry in content if isinstance(content, list) else [None]:
        if not isinstance(entry, dict) or not {"clip_id", "keep"} <= entry.keys():
            raise ValueError("a list of {clip_id, keep} is needed, or one object of id to keep")
        yield str(entry["clip_id"]), entry["keep"]
