"""`vfm curate`: raw video to captioned WebDataset shards."""

from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import VfmError

if TYPE_CHECKING:
    from curation.config import CurateConfig

HELP = """
raw video to captioned shards, with a page of what was kept and why

usage: vfm curate input=DIR output=DIR [KEY=VALUE ...]

Cuts every video into shots, scores each clip, decides with all scores known, and writes what is
kept as WebDataset shards with an index, a report page and an accounting of every second.
The same command continues an interrupted run; what is done is not done again.
`vfm config curate` prints every setting, dry_run=true what would be done.

examples:
  vfm curate input=videos output=curated
  vfm curate input=videos output=curated captions=captions.json max_clip_s=6
  vfm curate input=videos output=curated blur.min=null motion.min=0.01 dry_run=true
"""

EXAMPLE = "vfm curate input=videos output=curated"
INTERRUPTED = "the same command continues where it stopped"


def schema() -> type:
    from curation.config import CurateConfig

    return CurateConfig


def run(argv: list[str]) -> int:
    from functools import partial

    from rich.console import Console

    from cli.config import begin, load, show_plan
    from curation.config import CurateConfig

    loaded = load("curate", argv, CurateConfig, example=EXAMPLE)
    config = loaded.config
    # Before anything is written: a mistyped input must not leave an output folder behind.
    if not Path(config.input).exists():
        raise VfmError(f"input={config.input}: there is no such folder or file")
    if loaded.dry_run:
        return show_plan(loaded, _plan(config))

    from curation.run import curate

    on_start = partial(begin, loaded, Path(config.output))
    return curate(config, console=Console(), on_start=on_start).exit_code


def _plan(config: "CurateConfig") -> list[str]:
    from curation.sources import scan

    found = scan(Path(config.input), without=Path(config.output))
    mib = sum(Path(source.path).stat().st_size for source in found.files) / 2**20
    exists = (Path(config.output) / "ledger").is_dir()
    return [
        f"input: {len(found.files)} files to read, {mib:.1f} MiB; {len(found.others)} passed over",
        *(f"cannot be read: {bad.source} ({bad.reason})" for bad in found.refused),
        f"output: {config.output}, {'which is continued' if exists else 'which is new'}",
    ]
