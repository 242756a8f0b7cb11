"""Whether small models learn what they are told: colour, shape and motion of moving shapes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.row import Row
from common.errors import ConfigError, VfmError

HELP = """
small models that are told which shape to draw and how it moves, judged by a rule on pixels

Runs examples/moving_shapes once for each of `told`, captions and classes, in a process of its own:
trains a DiT from random weights for `steps` steps, draws `samples` videos with classifier-free
guidance, and gives the shares of them that show the right colour, shape and move, and all three.
Rows of earlier steps are a learning curve, over 96 samples each. Seconds are processor time of the
training on `threads` threads.

examples:
  vfm bench toys
  vfm bench toys told=[classes] steps=500
"""

ROOT = Path(__file__).parents[1]
TOLD = ("captions", "classes")


@dataclass(kw_only=True)
class Settings:
    told: list[str] = field(default_factory=lambda: list(TOLD))
    """Of captions, classes."""
    steps: int = 3000
    samples: int = 200
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        for given in self.told:
            if given not in TOLD:
                raise ConfigError(f"told: {given} is none of {', '.join(TOLD)}")
        for name in ("steps", "samples", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")


def measure(settings: Settings) -> Iterator[Row]:
    """Rows of every point of the learning curves. Raises `ConfigError` outside the source tree."""
    if not (ROOT / "examples" / "moving_shapes").is_dir():
        raise ConfigError("the moving shapes are an example of the source tree; run this from it")
    for told in settings.told:
        for point in _points(told, settings):
            case = f"{told}, {point.pop('step')} steps"
            for name, value in point.items():
                unit = "cpu-s" if name == "train_cpu_s" else "1"
                metric = "train" if name == "train_cpu_s" else name
                yield Row(
                    benchmark="toys",
                    case=case,
                    subject="DiT",
                    metric=metric,
                    value=value,
                    unit=unit,
                )


def _points(told: str, settings: Settings) -> Iterator[dict[str, float]]:
    words = [sys.executable, "-m", "examples.moving_shapes.train", f"--told={told}"]
    for name in ("steps", "samples", "seed", "threads"):
        words.append(f"--{name}={getattr(settings, name)}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise VfmError(f"the example failed: {done.stderr.strip()[-500:]}")
    for line in done.stdout.splitlines():
        point = json.loads(line)
        del point["told"]
        yield point
