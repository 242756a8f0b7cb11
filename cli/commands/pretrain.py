"""`vfm pretrain`: trains a video model from curated shards."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cli.config import Loaded
    from training.config import TrainConfig

HELP = """
train a video model from curated shards

usage: vfm pretrain data.path=DIR output=DIR [experiment=NAME] [KEY=VALUE ...]

data.path is the output of `vfm curate`. output is the folder of the run: checkpoints, metrics.jsonl
and samples. A run that was stopped goes on with the same command; once steps are trained,
Ctrl-C saves first.

model=NAME and objective=NAME choose the network and what it learns: docs/models.md lists them.

examples:
  vfm pretrain data.path=curated output=run experiment=demo
  vfm pretrain data.path=curated output=run model=dit_b steps=100000 optimizer.lr=2e-4
  vfm pretrain data.path=curated output=run data.size=[512,288] data.num_frames=[1,33] dry_run=true
  vfm pretrain data.path=curated output=run model.prefix=true prefix.shares=[0.5,0.3,0.2]
  torchrun --nproc-per-node 4 --no-python vfm pretrain data.path=curated output=run \
      packs_per_step=2 parallel.ring=2
  vfm config pretrain experiment=demo
"""

EXAMPLE = "vfm pretrain data.path=curated output=run"
INTERRUPTED = "the same command continues from the last checkpoint, or anew where there is none"


def schema() -> type:
    from training.config import TrainConfig

    return TrainConfig


def run(argv: list[str]) -> int:
    from cli.config import load
    from training.config import TrainConfig

    return train(load("pretrain", argv, TrainConfig, example=EXAMPLE))


def train(loaded: "Loaded[TrainConfig]") -> int:
    """The run of a resolved configuration."""
    from functools import partial
    from pathlib import Path

    from rich.console import Console

    from cli.config import begin, show_plan
    from parallel.topology import Topology
    from training.trainer import Trainer

    parallel = loaded.config.parallel
    topology = Topology.from_environment(ulysses=parallel.ulysses, ring=parallel.ring)
    first = topology.rank == 0
    trainer = Trainer(loaded.config, loaded.yaml, topology, Console(quiet=not first))
    if loaded.dry_run:
        return show_plan(loaded, trainer.plan()) if first else 0
    on_start = partial(begin, loaded, Path(loaded.config.output))
    trainer.run(on_start=on_start if first else lambda: None)
    if first:
        output = loaded.config.output
        print(f"trained to step {loaded.config.steps}: {output}  (`vfm view {output}`)")
    return 0
