"""The page that shows what a curated folder kept and rejected, and why: `report/index.html`.

Everything but the thumbnails is in the one file, so it opens from a disk, an archive or an object
store alike. The page builds only the cards in view; 50,000 clips stay usable.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import pyarrow.parquet

from common.errors import DataError
from common.pages import badge, counted, duration, key_figures, page, stacked_bar, text
from common.storage import write_atomic
from common.store_path import Place
from curation.report_columns import clip_columns
from curation.report_stages import Series, charts, read_series, stage_section

__all__ = ["write_report"]

KEPT = "kept"
FAILED = "failed: "
NUM_COLOURS = 8
SCRIPTS = (
    "columns.js",
    "pager.js",
    "grid.js",
    "limits.js",
    "handlabels.js",
    "histogram.js",
    "cards.js",
    "timeline.js",
    "report.js",
    "linechart.js",
    "engine.js",
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the footage: what was kept, one reason of rejection, or one of failure.

    Footage that never became a clip counts too, so seconds may stand beside no clip at all.
    """

    kind: str
    label: str
    colour: str
    num_clips: int
    seconds: float


Folder = TypeVar("Folder", bound=Place)


def write_report(folder: Folder) -> Folder:
    """Writes `folder/report/index.html` and returns its path.

    Reads `clips.parquet`, and where they exist `videos.parquet`, `summary.json`, `failed.jsonl` and
    `report/thumbs/CLIP_ID.jpg`. Columns that are absent leave their part of the page out. Of the
    summary it uses `seconds_in`, `seconds_kept`, `seconds_rejected` and `seconds_failed` (reason to
    seconds), `wall_s`, `bottleneck` (a sentence), `stages`, `shards` and `thresholds`. An engine's
    `report/engine.jsonl` is drawn. Raises `DataError` when the folder has no `clips.parquet` or one
    of the files is damaged.
    """
    clips = _read_table(folder / "clips.parquet")
    if clips is None:
        raise DataError(f"no clips.parquet in '{folder}': run `vfm curate output={folder}` first")
    for name in ("clip_id", "kept"):
        if name not in clips:
            raise DataError(f"'{folder / 'clips.parquet'}' has no column '{name}': curate again")
    videos = _read_table(folder / "videos.parquet") or {}
    summary = _read_json(folder / "summary.json")
    failures = _read_lines(folder / "failed.jsonl")
    thumbs = folder / "report" / "thumbs"
    have_thumb = {path.stem for path in thumbs.iterdir()} if thumbs.is_dir() else set()

    seen = read_series(folder / "report" / "engine.jsonl")
    parts = _parts(clips, summary)
    place = {part.label: number for number, part in enumerate(parts)}
    labels = [place[label] for label in _labels(clips)]
    html = page(
        title=f"Curation report: {folder.resolve().name}",
        body=_body(clips, videos, failures, summary, parts, seen),
        styles=["report.css", "curves.css"],
        scripts=SCRIPTS,
        data={
            "clips": clip_columns(clips, videos, labels, have_thumb, summary),
            "labels": [
                {"name": part.label, "kind": part.kind, "colour": part.colour} for part in parts
            ],
            "tables": {"sources": _source_rows(videos), "failures": _failure_rows(failures)},
            "engine": charts(seen),
        },
    )
    path = folder / "report" / "index.html"
    write_atomic(path, html.encode("utf-8"))
    return cast(Folder, path)


def _read_table(path: Place) -> dict[str, list[Any]] | None:
    if not path.exists():
        return None
    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(path.read_bytes()))
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"'{path}' is no readable parquet file ({error}): curate again") from error
    return table.to_pydict()


def _read_json(path: Place) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"'{path}' is no JSON ({error}): curate again") from error


def _read_lines(path: Place) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows = []
    # Not splitlines: that also ends a line at U+2028, which a JSON string may hold.
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise DataError(f"'{path}' line {number} is no JSON ({error}): remove it") from error
    return rows


def _seconds(clips: Mapping[str, list[Any]]) -> list[float]:
    if "start_s" not in clips or "end_s" not in clips:
        return [0.0] * len(clips["clip_id"])
    return [end - start for start, end in zip(clips["start_s"], clips["end_s"], strict=True)]


def _labels(clips: Mapping[str, list[Any]]) -> list[str]:
    """Per clip: `kept`, the reason of its rejection, or `failed: ` and the reason of that."""
    none = [None] * len(clips["kept"])
    rejections, failures = clips.get("reject_reason", none), clips.get("failed_reason", none)
    return [
        KEPT if kept else f"{FAILED}{failed}" if failed else (rejected or "no reason given")
        for kept, rejected, failed in zip(clips["kept"], rejections, failures, strict=True)
    ]


def _parts(clips: Mapping[str, list[Any]], summary: Mapping[str, Any]) -> list[Part]:
    """Kept first, then the reasons, then the failures, each by falling seconds.

    Seconds come from the summary, which also counts footage that never became a clip; what the
    summary leaves out, and the counts of clips, from the table.
    """
    counts: dict[str, int] = {}
    seconds: dict[str, float] = {KEPT: 0.0}
    for label, length_s in zip(_labels(clips), _seconds(clips), strict=True):
        counts[label] = counts.get(label, 0) + 1
        seconds[label] = seconds.get(label, 0.0) + length_s
    seconds[KEPT] = summary.get("seconds_kept", seconds[KEPT])
    seconds |= summary.get("seconds_rejected", {})
    seconds |= {f"{FAILED}{name}": s for name, s in summary.get("seconds_failed", {}).items()}
    kinds: dict[str, list[str]] = {KEPT: [], "rejected": [], "failed": []}
    for label in sorted(seconds, key=lambda name: (-seconds[name], name)):
        kind = KEPT if label == KEPT else "failed" if label.startswith(FAILED) else "rejected"
        kinds[kind].append(label)
    return [
        Part(
            kind=kind,
            label=label,
            colour=f"fill-{min(rank, NUM_COLOURS - 1) if kind == 'rejected' else kind}",
            num_clips=counts.get(label, 0),
            seconds=seconds[label],
        )
        for kind, labels in kinds.items()
        for rank, label in enumerate(labels)
    ]


def _source_rows(videos: Mapping[str, list[Any]]) -> dict[str, Any]:
    shown: dict[str, tuple[str, Callable[[Any], str]]] = {
        "source": ("Source", str),
        "status": ("Status", str),
        "reason": ("Reason", str),
        "detail": ("What happened", str),
        "duration_s": ("Length", duration),
        "size": ("Size", str),
        "fps": ("Frames/s", lambda fps: f"{fps:.4g}"),
        "codec": ("Codec", str),
        "num_clips": ("Clips", lambda count: f"{count:,}"),
    }
    columns = dict(videos)
    if "width" in videos and "height" in videos:
        sizes = zip(videos["width"], videos["height"], strict=True)
        columns["size"] = [f"{width} \u00d7 {height}" if width else None for width, height in sizes]
    names = [name for name in shown if name in columns]
    return {
        "heads": [shown[name][0] for name in names],
        "numeric": [name in ("duration_s", "fps", "num_clips") for name in names],
        "rows": [
            [
                "" if value is None else shown[name][1](value)
                for name, value in zip(names, row, strict=True)
            ]
            for row in zip(*(columns[name] for name in names), strict=True)
        ],
    }


def _failure_rows(failures: list[dict[str, Any]]) -> dict[str, Any]:
    shown = {
        "id": "Item",
        "label": "Name",
        "source": "Source",
        "stage": "Stage",
        "attempts": "Attempts",
        "reason": "Reason",
        "detail": "What happened",
        "command": "Reproduce with",
    }
    names = [name for name in shown if any(name in row for row in failures)]
    return {
        "heads": [shown[name] for name in names],
        "numeric": [name == "attempts" for name in names],
        "code": [name == "command" for name in names],
        "rows": [
            ["" if row.get(name) is None else str(row[name]) for name in names] for row in failures
        ],
    }


def _body(
    clips: Mapping[str, list[Any]],
    videos: Mapping[str, list[Any]],
    failures: list[dict[str, Any]],
    summary: Mapping[str, Any],
    parts: list[Part],
    seen: Series,
) -> str:
    num_clips = len(clips["clip_id"])
    rejected = [part for part in parts if part.kind == "rejected"]
    failed = [part for part in parts if part.kind == "failed"]
    seconds_in = summary.get("seconds_in", sum(part.seconds for part in parts))
    num_sources = len(videos.get("source", [])) or len(set(clips.get("source", [])))
    figures = [
        ("Footage in", duration(seconds_in), counted(num_sources, "source")),
        ("Kept", duration(parts[0].seconds), counted(parts[0].num_clips, "clip")),
        (
            "Rejected",
            duration(sum(part.seconds for part in rejected)),
            counted(sum(part.num_clips for part in rejected), "clip"),
        ),
        (
            "Failed",
            duration(sum(part.seconds for part in failed)),
            counted(len(failures), "item"),
        ),
    ]
    if isinstance(summary.get("wall_s"), int | float):
        figures.append(("Wall time", duration(summary["wall_s"]), ""))
    behind = _behind(summary.get("shards", {}))
    kept = parts[0].num_clips
    bar = stacked_bar([(part.label, part.colour, part.seconds) for part in parts], seconds_in)
    stages = stage_section(summary, seen)
    lede = (
        f"{duration(parts[0].seconds)} of {duration(seconds_in)} of footage was kept."
        if num_clips
        else "No clip came out of the footage; the tables below say what happened to each source."
    )
    return f"""<header class="hero wrap">
<p class="eyebrow">Curation report</p>
<h1>{kept:,} of {counted(num_clips, "clip")} kept</h1>
<p class="lede">{lede} {text(summary.get("bottleneck", ""))}</p>
{behind}{key_figures(figures)}
</header>
<nav class="contents" aria-label="Contents"><div class="wrap"><a href="#accounting">Footage</a>
<a href="#browse">Clips and limits</a><a href="#cuts">Cuts</a><a href="#sources">Sources</a>
<a href="#failures">Failures</a>{stages and '<a href="#stages">Stages</a>'}</div></nav>
<noscript><p class="wrap">The clips below are drawn by this page's own script; allow it to see
them.</p></noscript>
<main id="main">
<section class="wrap" id="accounting"><h2>Where the footage went</h2>{bar}
{_legend(parts, seconds_in)}</section>
<section class="wrap wide" id="browse"><h2>Clips and limits</h2>
<p class="muted">Drag a limit to see what it would keep; nothing changes in the folder.</p>
<div id="browser"></div></section>
<section class="wrap" id="cuts"><h2>Cuts</h2>
<p class="muted">Every video over its whole length. Gaps are footage that never became a clip.</p>
<div id="timeline"></div></section>
<section class="wrap" id="sources"><h2>Sources</h2><div id="source-table"></div></section>
<section class="wrap" id="failures"><h2>Failures</h2>{_reasons(failures)}
<div id="failure-table"></div></section>
{stages}</main>"""


def _legend(parts: list[Part], seconds_in: float) -> str:
    rows = []
    for part in parts:
        share = part.seconds / seconds_in if seconds_in else 0.0
        clips = f"{part.num_clips:,}" if part.num_clips or part.kind == KEPT else ""
        rows.append(
            f'<tr><td>{badge(part.label, part.colour)}</td><td class="num">{clips}</td>'
            f'<td class="num">{duration(part.seconds)}</td><td class="num">{share:.1%}</td></tr>'
        )
    accounted = sum(part.seconds for part in parts)
    # A tenth of a frame at 100 frames/s per part is rounding; more is footage nobody accounts for.
    gap = seconds_in - accounted
    warning = (
        f'<p class="warning">{duration(abs(gap))} of footage '
        f"{'is in no part' if gap > 0 else 'is counted twice'}: this is a defect of the curation "
        "run.</p>"
        if abs(gap) > 0.001 * len(parts) + 1e-6 * seconds_in
        else ""
    )
    return (
        f'<div class="table"><table class="legend"><thead><tr><th>Part</th><th class="num">Clips'
        f'</th><th class="num">Length</th><th class="num">Share</th></tr></thead><tbody>'
        f"{''.join(rows)}</tbody><tfoot><tr><th>All footage</th><td></td>"
        f'<td class="num">{duration(seconds_in)}</td><td class="num">100.0%</td></tr></tfoot>'
        f"</table></div>{warning}"
    )


def _reasons(failures: list[dict[str, Any]]) -> str:
    """How often each reason occurs, the most frequent first."""
    counts = Counter(str(row.get("reason", "no reason given")) for row in failures)
    said = [f"{badge(reason, 'fill-failed')} {count:,}" for reason, count in counts.most_common()]
    return f'<p class="reasons num">{" ".join(f"<span>{one}</span>" for one in said)}</p>'


def _behind(shards: Mapping[str, Any]) -> str:
    """What the shards lack or hold too much."""
    if shards.get("to_add") and not shards.get("clips"):
        return (
            f'<p class="notice">{counted(shards["to_add"], "clip")} to add to the shards: '
            "they are spans of their sources until <code>vfm shard</code> encodes them.</p>"
        )
    if shards.get("to_add") or shards.get("to_leave_out"):
        return (
            '<p class="warning">The shards are of an earlier decision: '
            f"{counted(shards['to_add'], 'clip')} to add, {shards['to_leave_out']:,} to leave out. "
            "<code>vfm shard</code> brings them to this one.</p>"
        )
    return ""
