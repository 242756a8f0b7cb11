"""What a run leaves for people: its accounting, its failures with commands, the closing table."""

import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from common.storage import write_atomic
from common.store_path import Place, place_of
from curation.config import CurateConfig
from curation.tables import ClipRow, write_failed


def stage_rates(
    clock: Mapping[str, Mapping[str, float]], workers: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Stage to items, seconds of work, and the rates of one worker.

    Args:
        workers: how many a stage had, where that is not one.
    """
    stages = {}
    for name, spent in clock.items():
        busy_s = max(spent["wall_s"], 1e-9)
        stages[name] = {"items": spent["items"], "wall_s": round(spent["wall_s"], 3)}
        stages[name]["workers"] = workers.get(name, 1)
        stages[name]["tasks_per_s"] = float(f"{spent['items'] / busy_s:.4g}")
        for unit in ("seconds", "frames"):
            if unit in spent:
                stages[name][f"video_{unit}_per_s"] = round(spent[unit] / busy_s, 2)
    return stages


def bottleneck(stages: dict[str, dict[str, Any]], wall_s: float) -> str:
    """One sentence: where the time went, and what more workers there would bring."""
    if not stages:
        return "Nothing was left to do."
    took = {name: stage["wall_s"] / stage["workers"] for name, stage in stages.items()}
    name = max(took, key=lambda n: took[n])
    share = min(1.0, took[name] / max(wall_s, 1e-9))
    workers = stages[name]["workers"]
    rate = stages[name].get("video_seconds_per_s")
    text = f"The slowest stage is {name}: {share:.0%} of the time"
    if rate:
        text += f", {rate * workers:.1f} s of video per second"
    if workers > 1:
        gain = 1 / (1 - share / 2)
        text += f" on {workers} workers; with {2 * workers} the whole is {gain:.1f} times as fast"
    return f"{text}."


def shards_against(clips: Sequence[ClipRow], sharded: Collection[str]) -> dict[str, int]:
    """What the shards hold, beside what is kept: after another decision the two differ until
    shards are made again."""
    kept = {clip.clip_id for clip in clips if clip.kept}
    inside = set(sharded)
    return {
        "clips": len(inside),
        "to_add": len(kept - inside),
        "to_leave_out": len(inside - kept),
    }


def write_summary(path: Place, summary: dict[str, Any]) -> None:
    text = json.dumps(summary, indent=1, ensure_ascii=False) + "\n"
    write_atomic(path, text.encode())


def write_failures(path: Place, entries: list[dict[str, Any]], config: CurateConfig) -> None:
    """Each entry with the command that meets it again, alone and in a folder of its own, unless
    it has one."""
    again = f"{place_of(config.output)}-again"
    lines = []
    for number, entry in enumerate(entries):
        if "command" in entry:
            lines.append(entry)
            continue
        folder = f"{again}/{entry['id'] or number}"
        words = [f"input={entry['path']}", f"output={folder}", *_overrides(config)]
        command = shlex.join(["vfm", "curate", *words])
        lines.append({k: v for k, v in entry.items() if k != "path"} | {"command": command})
    write_failed(path, lines)


def printable(text: str) -> str:
    """A text without the control characters by which a file name could steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def chosen_limits(summary: Mapping[str, Any]) -> str:
    """What a yield or labels made of the limits, in one line."""
    by = summary["decided_by"]
    limits = [
        f"{name} {word} {bounds[side]:g}"
        for name, bounds in summary["thresholds"].items()
        for side, word in (("min", "at least"), ("max", "at most"))
        if bounds[side] is not None
    ]
    return f"limits by {by['setting']}={by['value']}: {', '.join(limits) or 'none'}"


_FAILURES_SHOWN = 20


def print_summary(
    console: Console, summary: dict[str, Any], failed: Sequence[dict[str, Any]], report: Place
) -> None:
    """The accounting as a table, what failed by name, and where the page lies."""
    table = Table("", "clips", "seconds", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("kept", str(summary["clips_kept"]), f"{summary['seconds_kept']:.1f}")
    for kind in ("rejected", "failed"):
        for reason, seconds in summary[f"seconds_{kind}"].items():
            count = summary[f"clips_{kind}"].get(reason)
            shown = "" if count is None else str(count)
            table.add_row(f"{kind}: {reason}", shown, f"{seconds:.1f}")
    table.add_row("in", str(summary["clips_in"]), f"{summary['seconds_in']:.1f}")
    console.print(table)
    console.print(
        f"captions: {summary['captioned_clips_kept']} of {summary['clips_kept']} kept clips",
        highlight=False,
    )
    for entry in failed[:_FAILURES_SHOWN]:
        line = f"failed: {entry['source']} ({entry['reason']}): {entry['detail']}"
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    if len(failed) > _FAILURES_SHOWN:
        console.print(f"and {len(failed) - _FAILURES_SHOWN} more, see failed.jsonl")
    for name, problem in summary["caption_problems"].items():
        console.print(f"caption left out: {printable(name)} {problem}", markup=False)
    if summary["captions_not_in_shards"]:
        console.print(
            f"{summary['captions_not_in_shards']} clips lie in shards with other captions than "
            "they have now; shards are never rewritten: for the new ones choose another output"
        )
    if summary.get("decided_by"):
        console.print(chosen_limits(summary), markup=False, highlight=False, soft_wrap=True)
    shards = summary["shards"]
    if shards["to_add"] and not shards["clips"]:
        console.print(
            f"{shards['to_add']} clips are spans of their sources; `vfm shard` encodes them",
            markup=False,
            highlight=False,
        )
    elif shards["to_add"] or shards["to_leave_out"]:
        console.print(
            f"the shards are of an earlier decision: {shards['to_add']} clips to add, "
            f"{shards['to_leave_out']} to leave out; `vfm shard` brings them to this one",
            markup=False,
            soft_wrap=True,
        )
    by_reason: dict[str, list[str]] = {}
    for name, why in summary.get("scores_not_measured", {}).items():
        by_reason.setdefault(why, []).append(name)
    for why, names in by_reason.items():
        console.print(f"not measured: {', '.join(names)}: {why}", markup=False, soft_wrap=True)
    if summary["files_ignored"]:
        console.print(f"{len(summary['files_ignored'])} files are no videos, ignored")
    if summary.get("files_hidden"):
        console.print(f"{len(summary['files_hidden'])} hidden files or folders, passed over")
    for name, notes in summary.get("video_notes", {}).items():
        line = printable(f"{name}: {notes}")
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(str(report), markup=False, highlight=False, soft_wrap=True)


def _overrides(config: Any, default: Any = None, prefix: str = "") -> Iterator[str]:
    """`key=value` for everything that is not at its default, input and output left out."""
    default = default or CurateConfig(input="", output="")
    for field in fields(config):
        value, usual = getattr(config, field.name), getattr(default, field.name)
        if is_dataclass(value):
            yield from _overrides(value, usual, f"{prefix}{field.name}.")
        elif value != usual and prefix + field.name not in ("input", "output"):
            shown = json.dumps(value) if isinstance(value, bool | list) or value is None else value
            yield f"{prefix}{field.name}={shown}"
