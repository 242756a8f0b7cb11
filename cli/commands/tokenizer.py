"""`vfm tokenizer`: trains a tokenizer on curated shards."""

HELP = """
train a video tokenizer on curated shards

usage: vfm tokenizer data.path=DIR output=DIR [KEY=VALUE ...]

data.path is the output of `vfm curate`. output becomes the folder that `vfm pretrain
tokenizer.path=DIR` takes. The recipe is L1, a perceptual term and KL; a critic of patches where
recipe.adversarial is above 0. With tokenizer.levels latents are discrete. At the end PSNR and SSIM
on held-out windows are told.

examples:
  vfm tokenizer data.path=curated output=tokenizer
  vfm tokenizer data.path=curated output=tokenizer tokenizer.channels=32 recipe.adversarial=0.1
  vfm tokenizer data.path=curated output=tokenizer tokenizer.attention_blocks=1 recipe.steps=20000
  vfm tokenizer data.path=curated output=codes tokenizer.channels=6 tokenizer.levels=[8,8,8,5,5,5]
"""

EXAMPLE = "vfm tokenizer data.path=curated output=tokenizer"
INTERRUPTED = "no tokenizer is kept; the same command begins anew"


def schema() -> type:
    from training.tokenizer import TokenizerConfig

    return TokenizerConfig


def run(argv: list[str]) -> int:
    from functools import partial
    from pathlib import Path

    from rich.console import Console

    from cli.config import begin, load, show_plan
    from training.tokenizer import TokenizerConfig, TokenizerRun

    loaded = load("tokenizer", argv, TokenizerConfig, example=EXAMPLE)
    work = TokenizerRun(loaded.config, Console())
    if loaded.dry_run:
        return show_plan(loaded, work.plan())
    quality = work.run(on_start=partial(begin, loaded, Path(loaded.config.output)))
    if quality.windows:
        print(
            f"{quality.windows} held-out windows: PSNR {quality.psnr_db:.2f} dB, "
            f"SSIM {quality.ssim:.4f}"
        )
    else:
        print("nothing is held out, so nothing was measured")
    print(f"tokenizer: {loaded.config.output}")
    return 0
