"""Captions that come with the videos.

Looked for in this order: the file that the configuration names, `NAME.json` or `NAME.txt` beside
the video, then `captions.json` in the input folder. A caption is a text for the whole video, or a
list of spans `{"start_s", "end_s", "caption"}`, of which a clip takes the one it shares most time
with.
"""

import json
import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import ConfigError, DataError
from common.store_path import Place, StorePath

FOLDER_FILE = "captions.json"


@dataclass(frozen=True, kw_only=True)
class Span:
    start_s: float
    end_s: float
    caption: str


@dataclass(frozen=True, kw_only=True)
class Captions:
    """All that is said of one video, and in which file."""

    spans: tuple[Span, ...] = ()
    origin: str = ""

    def of(self, start_s: float, end_s: float) -> tuple[str, str]:
        """(caption, where it comes from) of a clip; two empty texts where there is none."""
        best = max(
            self.spans, key=lambda s: min(end_s, s.end_s) - max(start_s, s.start_s), default=None
        )
        if best is None or min(end_s, best.end_s) <= max(start_s, best.start_s):
            return "", ""
        return best.caption, self.origin


class CaptionBook:
    """Finds the captions of each video, and keeps what could not be read in `problems`.

    Args:
        folder: of the videos; None where nothing lies beside them.
        explicit: a table that goes before what lies there.
        listed: the names of what lies there, where a store has told; else the disk is asked.
    """

    def __init__(
        self,
        folder: Place | None,
        explicit: Place | None = None,
        *,
        listed: Collection[str] | None = None,
    ) -> None:
        self.problems: dict[str, str] = {}
        """File name to why its caption was left out."""
        self.used: set[str] = set()
        """Files beside the videos that were read as captions, relative to the folder."""
        self._listed = None if listed is None else frozenset(listed)
        if isinstance(folder, Path) and not folder.is_dir():
            folder = folder.parent
        self._folder = folder
        """None where nothing lies beside the videos."""
        self._explicit: dict[str, Any] = {}
        self._explicit_name = ""
        if explicit is not None:
            self._explicit_name = explicit.name
            try:
                self._explicit = _table(_parse(explicit))
            except FileNotFoundError:
                raise ConfigError(f"captions={explicit} does not exist") from None
            except OSError as error:
                why = error.strerror or error
                raise ConfigError(
                    f"captions={explicit} cannot be read ({why}): name a JSON file"
                ) from None
            except ValueError as error:
                raise DataError(f"captions={explicit}: {error}") from error
        self._common: dict[str, Any] = {}
        if self._folder is not None and self._is_there(FOLDER_FILE):
            self.used.add(FOLDER_FILE)
            try:
                self._common = _table(_parse(self._folder / FOLDER_FILE))
            except (ValueError, OSError) as error:
                self.problems[FOLDER_FILE] = str(error)

    def of(self, source: str) -> Captions:
        """The captions of a video by its name in the input folder."""
        for table, origin in self._tables(source):
            for name in (source, Path(source).name):
                if name in table:
                    try:
                        return Captions(spans=_spans(table[name]), origin=origin)
                    except ValueError as error:
                        self.problems[f"{origin}: {name}"] = str(error)
        return Captions()

    def _tables(self, source: str) -> list[tuple[dict[str, Any], str]]:
        tables = [(self._explicit, self._explicit_name)]
        if self._folder is None:
            return tables
        for suffix in (".json", ".txt"):
            # Both clip.mp4.txt and clip.txt are in use.
            for beside in (source + suffix, Path(source).with_suffix(suffix).as_posix()):
                if beside == FOLDER_FILE or not self._is_there(beside):
                    continue
                self.used.add(beside)
                try:
                    value = _parse(self._folder / beside)
                except (ValueError, OSError) as error:
                    self.problems[beside] = str(error)
                    continue
                tables.append(({source: value}, beside))
        tables.append((self._common, FOLDER_FILE))
        return tables

    def _is_there(self, name: str) -> bool:
        if self._listed is not None:
            return name in self._listed
        if isinstance(self._folder, StorePath):
            return (self._folder / name).is_file()
        # `Path.is_file` raises where a name is too long, or a folder closed.
        return os.path.isfile(f"{self._folder}/{name}")  # noqa: PTH113


def _parse(path: Place) -> Any:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    if path.suffix.lower() == ".txt":
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must map file names to captions")
    return value


def _spans(value: Any) -> tuple[Span, ...]:
    """A text, a list of spans, or an object with `caption` or `captions`."""
    if isinstance(value, dict):
        if "captions" in value:
            value = value["captions"]
        elif "caption" in value and "start_s" not in value:
            value = value["caption"]
    if isinstance(value, str):
        text = _text(value)
        return (Span(start_s=-math.inf, end_s=math.inf, caption=text),) if text else ()
    if isinstance(value, list):
        return tuple(_span(entry) for entry in value)
    raise ValueError(f"a caption is a text or a list of spans, not {type(value).__name__}")


def _span(entry: Any) -> Span:
    try:
        start_s, end_s = float(entry["start_s"]), float(entry["end_s"])
        caption = entry["caption"]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError("every span needs start_s, end_s and caption") from None
    if not (math.isfinite(start_s) and math.isfinite(end_s)):
        raise ValueError(f"start_s={start_s} and end_s={end_s} must be finite numbers")
    if not isinstance(caption, str):
        raise ValueError(f"the caption of a span is a text, not {type(caption).__name__}")
    return Span(start_s=start_s, end_s=end_s, caption=_text(caption))


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half a character (a lone surrogate)") from None
    return value.strip()
