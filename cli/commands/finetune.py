"""`vfm finetune`: goes on from trained weights, on other footage or towards another task."""

HELP = """
train on from the weights of a checkpoint

usage: vfm finetune checkpoint=RUN data.path=DIR output=DIR [KEY=VALUE ...]

checkpoint is a run of `vfm pretrain` (its newest checkpoint is taken) or one of its checkpoints.
Network, objective, text encoder, tokenizer, and length, size and rate of the videos are the
checkpoint's unless given; every other setting is that of `vfm pretrain`. A run that was stopped
goes on with the same command.

lora.rank=16 trains small differences to the weights alone (LoRA); each checkpoint then has a folder
`adapter` in the layout of peft, besides the whole weights. model.prefix=true teaches a model that
learned from text alone to go on from given frames.

examples:
  vfm finetune checkpoint=run data.path=curated output=tuned steps=1000 optimizer.lr=1e-5
  vfm finetune checkpoint=run data.path=curated output=tuned lora.rank=16 optimizer.lr=1e-4
  vfm finetune checkpoint=run data.path=curated output=tuned "lora.targets=['blocks.*.mlp.*']"
  vfm finetune checkpoint=run data.path=curated output=on model.prefix=true prefix.shares=[1,1]
"""

EXAMPLE = "vfm finetune checkpoint=run data.path=curated output=tuned"
INTERRUPTED = "the same command continues from the last checkpoint, or anew where there is none"


def schema() -> type:
    from training.config import TrainConfig

    return TrainConfig


def run(argv: list[str]) -> int:
    from cli.commands.pretrain import train
    from cli.config import load, path_of
    from training.config import TrainConfig
    from training.setup import settings_of

    base = settings_of(path_of("checkpoint", argv, EXAMPLE))
    return train(load("finetune", argv, TrainConfig, example=EXAMPLE, base=base))
