"""`vfm encode`: latents and text embeddings for a curated folder."""

HELP = """
encode curated shards to latents and text embeddings, once for all trainings

usage: vfm encode DIR tokenizer.path=DIR [KEY=VALUE ...]

DIR is the output of `vfm curate`. Of each clip, windows of every length in num_frames that it has
room for are encoded, windows_per_clip of each, and the held-out one; with their captions they make
shards of their own. `vfm pretrain data.path=OUTPUT` trains on them, with the num_frames, size,
resize and fps that were given here and the same text encoder. A run that was stopped goes on with
the same command. What cannot be read is named in failed.jsonl, and ends with exit code 1.

examples:
  vfm encode curated tokenizer.path=tokenizer
  vfm encode curated tokenizer.path=tokenizer output=encoded num_frames=[17,33] size=[512,288]
  vfm encode curated tokenizer.path=wan-vae text.kind=hub text.path=t5 windows_per_clip=4
  vfm pretrain data.path=encoded output=run
"""

EXAMPLE = "vfm encode curated tokenizer.path=tokenizer"
INTERRUPTED = "the same command continues where it stopped"


def schema() -> type:
    from training.encode import EncodeConfig

    return EncodeConfig


def run(argv: list[str]) -> int:
    from functools import partial

    from rich.console import Console

    from cli.config import begin, load, show_plan
    from common.pages import counted
    from training.encode import EncodeConfig, EncodeRun

    loaded = load("encode", argv, EncodeConfig, example=EXAMPLE)
    work = EncodeRun(loaded.config, Console())
    if loaded.dry_run:
        return show_plan(loaded, work.plan())
    made = work.run(on_start=partial(begin, loaded, work.output))
    failed = f", {len(made.failed)} failed (failed.jsonl)" if made.failed else ""
    print(f"{counted(made.windows, 'window')} encoded{failed}: {made.output}")
    return 1 if made.failed else 0
