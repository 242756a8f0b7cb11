"""`vfm shard`: the shards of what a curated folder keeps."""

import dataclasses

HELP = """
make the shards of what a curated folder keeps

usage: vfm shard DIR [rewrite=true] [executor=ray]

DIR is the output of a `vfm curate`, perhaps decided again by `vfm refilter`. Encodes only the clips
that have no encoding yet, and adds them as new shards; shards that are there stay as they are.
Where they hold clips that are no longer kept, rewrite=true makes all shards anew and exchanges them
in one step: stop what reads them first. The same command continues an interrupted one.

examples:
  vfm shard curated
  vfm shard curated rewrite=true
  vfm shard curated executor=ray ray.address=auto
"""

EXAMPLE = "vfm shard curated"
INTERRUPTED = "the same command continues where it stopped"


def schema() -> type:
    from curation.config import ReshardConfig

    return ReshardConfig


def run(argv: list[str]) -> int:
    from functools import partial

    from rich.console import Console

    from cli.config import begin, folder_of, load, show_plan, to_yaml
    from common.store_path import place_of
    from curation.config import ReshardConfig
    from curation.folder import settings_of
    from curation.refilter import reshard, shard_plan

    folder = folder_of("shard", argv, EXAMPLE)
    loaded = load("shard", argv, ReshardConfig, example=EXAMPLE)
    if loaded.dry_run:
        plan = shard_plan(loaded.config)
        return show_plan(
            loaded,
            [
                f"shards: {plan['clips']} clips, {plan['to_add']} to add, "
                f"{plan['to_leave_out']} to leave out"
            ],
        )
    loaded = dataclasses.replace(loaded, yaml=to_yaml(settings_of(folder)))
    on_start = partial(begin, loaded, place_of(folder))
    return reshard(loaded.config, console=Console(), on_start=on_start).exit_code
