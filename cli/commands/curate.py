"""`vfm curate`: raw video to captioned WebDataset shards."""

from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import VfmError

if TYPE_CHECKING:
    from curation.config import CurateConfig

HELP = """
raw video to captioned shards, with a page of what was kept and why

usage: vfm curate input=DIR_OR_URL output=DIR_OR_URL [KEY=VALUE ...]

Cuts every video into shots, scores each clip, decides with all scores known, and writes what is
kept as WebDataset shards with an index, a report page and an accounting of every second.
The same command continues an interrupted run; what is done is not done again.
Input and output may lie in object stores (s3://, gs://, az://): nothing is copied to this machine
but the clip or the shard that is being made. Credentials and endpoints are those of the
environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...).
`vfm config curate` prints every setting, dry_run=true what would be done, and
`vfm curate plan --help` how to predict the time and the machines that it takes.

examples:
  vfm curate input=videos output=curated
  vfm curate input=videos output=curated captions=captions.json max_clip_s=6
  vfm curate input=videos output=curated blur.min=null motion.min=0.01 dry_run=true
  vfm curate input=s3://footage/raw output=s3://footage/curated executor=ray
"""

PLAN_HELP = """
predict time, workers, memory and storage of a curation from a sample of it

usage: vfm curate plan input=DIR [KEY=VALUE ...]

Curates a few videos of the input into a temporary folder, measures each stage, and reckons what
the whole takes on the cluster that is described. Keys: sample=N videos to curate, total_tib=T where
the input is only a part of the whole, nodes=N, and of each node cpus=N, gpus=N, memory_gib=N;
caption_s=S for the seconds that a captioning model needs for a clip on one GPU.

examples:
  vfm curate plan input=videos nodes=4 cpus=64 gpus=8 caption_s=1.0
  vfm curate plan input=sample_videos total_tib=102400 nodes=250 cpus=224 gpus=8 memory_gib=2000
"""
PLAN_EXAMPLE = "vfm curate plan input=videos"

EXAMPLE = "vfm curate input=videos output=curated"
INTERRUPTED = "the same command continues where it stopped"


def schema() -> type:
    from curation.config import CurateConfig

    return CurateConfig


def help_of(argv: list[str]) -> str:
    return (PLAN_HELP if argv[0] == "plan" else HELP).strip()


def run(argv: list[str]) -> int:
    if argv and argv[0] == "plan":
        return _predict(argv[1:])
    from functools import partial

    from rich.console import Console

    from cli.config import begin, load, show_plan
    from common.remote import is_url
    from common.store_path import place_of
    from curation.config import CurateConfig

    loaded = load("curate", argv, CurateConfig, example=EXAMPLE)
    config = loaded.config
    # Before anything is written: a mistyped input must not leave an output folder behind.
    if not is_url(config.input) and not Path(config.input).exists():
        raise VfmError(f"input={config.input}: there is no such folder or file")
    if loaded.dry_run:
        return show_plan(loaded, _plan(config))

    from curation.run import curate

    on_start = partial(begin, loaded, place_of(config.output))
    return curate(config, console=Console(), on_start=on_start).exit_code


def _plan(config: "CurateConfig") -> list[str]:
    from common.store_path import place_of
    from curation.sources import find_sources, state_of

    output = place_of(config.output)
    found = find_sources(config.input, without=output)
    states = (source.state or state_of(source.path) for source in found.files)
    mib = sum(state.num_bytes for state in states) / 2**20
    exists = (output / "ledger").is_dir()
    return [
        f"input: {len(found.files)} files to read, {mib:.1f} MiB; {len(found.others)} passed over",
        *(f"cannot be read: {bad.source} ({bad.reason})" for bad in found.refused),
        f"output: {config.output}, {'which is continued' if exists else 'which is new'}",
    ]


def _predict(argv: list[str]) -> int:
    from rich.console import Console

    from cli.config import settings
    from curation.plan import PlanConfig, plan_curation, print_plan

    config = settings(argv, PlanConfig, example=PLAN_EXAMPLE)
    if not Path(config.input).exists():
        raise VfmError(f"input={config.input}: there is no such folder or file")
    print_plan(Console(), config, plan_curation(config))
    return 0
