"""`vfm refilter`: another decision over a curated folder, from its stored scores."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HELP = """
decide again which clips are kept, from the stored scores

usage: vfm refilter DIR [KEY=VALUE ...]

DIR is the output of a `vfm curate`. Takes seconds and decodes nothing, but for other settings of
`analysis`: scores that they change are measured again, by one decode of each source, and they
alone. What is not named stays as the folder has it. A limit is a number, a percentile of all clips
(p20), or null for none.
target_yield=0.4 chooses the limits that are not null so that about 40% of the seconds stay.
labels=FILE, a CSV of clip_id,keep as the page saves it, changes them as little as reproduces it.
Either stays until the other is given or it is null: target_yield=null goes back to the limits.
limits=FILE stands for the settings of a YAML file, as the report page saves it; words after it win.
Rewrites clips.parquet, summary.json and the page; never a shard. What the shards then lack or hold
too much is said, and `vfm shard DIR` brings them to it.
`vfm config refilter` prints every limit, dry_run=true what would be kept.

examples:
  vfm refilter curated motion.min=p20 blur.max=p99
  vfm refilter curated dark.min=null dry_run=true
  vfm refilter curated limits=limits.yaml
  vfm refilter curated target_yield=0.4
  vfm refilter curated labels=labels.csv
  vfm refilter curated analysis.jitter_window_s=0.5
"""

EXAMPLE = "vfm refilter curated motion.min=p20"
INTERRUPTED = "the same command decides again"


def schema() -> type:
    from curation.config import RefilterConfig

    return RefilterConfig


def run(argv: list[str]) -> int:
    from functools import partial

    from rich.console import Console

    from cli.config import begin, folder_of, load, to_yaml
    from cli.schema import plain
    from common.store_path import place_of
    from curation.config import RefilterConfig
    from curation.folder import settings_of
    from curation.refilter import preview, refilter, settings_after

    argv = [word for typed in argv for word in _opened(typed)]
    folder = folder_of("refilter", argv, EXAMPLE)
    now = plain(settings_of(folder))
    names = {field.name for field in dataclasses.fields(RefilterConfig)}
    base = {name: value for name, value in now.items() if name in names}
    base = {**base, **_displaced(argv[1:], base)}
    loaded = load("refilter", argv, RefilterConfig, example=EXAMPLE, base=base)
    if loaded.dry_run:
        return _show(loaded, preview(loaded.config))
    # What the folder keeps from now on is what its own settings say.
    loaded = dataclasses.replace(loaded, yaml=to_yaml(settings_after(loaded.config)))
    on_start = partial(begin, loaded, place_of(folder))
    return refilter(loaded.config, console=Console(), on_start=on_start).exit_code


def _displaced(words: Sequence[str], base: Mapping[str, Any]) -> dict[str, None]:
    """The folder's own yield or labels where the words name the other: null.

    Raises `ConfigError` for a limit that the folder's yield would choose anew, whatever it is.
    """
    from common.errors import ConfigError

    typed = {word.partition("=")[0] for word in words}
    displaced = {"labels": None} if "target_yield" in typed else {}
    displaced |= {"target_yield": None} if "labels" in typed else {}
    by_yield = base["target_yield"] is not None and not typed & {"target_yield", "labels"}
    overruled = [word for word in words if "." in word.partition("=")[0]]
    overruled = [word for word in overruled if not word.endswith("=null")]
    if by_yield and overruled:
        now = f"target_yield={base['target_yield']}"
        raise ConfigError(
            f"{overruled[0]} has no effect: the limits of this folder follow from {now}. Add "
            f"target_yield=null to decide by limits, or {now} to choose this one too"
        )
    return displaced


def _opened(word: str) -> list[str]:
    """`limits=FILE` and the words that it stands for; any other word as it is."""
    if not word.startswith("limits="):
        return [word]
    import yaml

    from common.errors import ConfigError

    name = word.removeprefix("limits=")
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(f"{word}: there is no such file; the report page saves one, *Save YAML*")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        said = str(error).splitlines()[0]
        raise ConfigError(f"{word} is no YAML file that can be read: {said}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{word} holds no settings: save it from the report page")
    return [word, *_words(content, "")]


def _words(content: Any, key: str) -> Iterator[str]:
    if isinstance(content, dict):
        for name, inside in content.items():
            yield from _words(inside, f"{key}.{name}".lstrip("."))
    else:
        yield f"{key}={'null' if content is None else content}"


def _show(loaded: Any, summary: dict[str, Any]) -> int:
    from cli.config import show_plan
    from curation.summary import chosen_limits

    rejected = [f"{count} {reason}" for reason, count in summary["clips_rejected"].items()]
    shards = summary["shards"]
    return show_plan(
        loaded,
        [
            f"kept: {summary['clips_kept']} of {summary['clips_in']} clips, "
            f"{summary['seconds_kept']:.1f} of {summary['seconds_in']:.1f} s",
            f"rejected: {', '.join(rejected) or 'none'}",
            *([chosen_limits(summary)] if summary["decided_by"] else []),
            f"shards: {shards['to_add']} clips to add, {shards['to_leave_out']} to leave out",
        ],
    )
