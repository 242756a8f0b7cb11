"""What can be asked of `vfm demo`."""

from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigError


@dataclass(kw_only=True)
class DemoConfig:
    """The whole first run: footage in, a page out."""

    output: str | None = None
    """By default `demo_out`, and `demo_out_NAME` for a folder of videos of that name."""
    videos: str | None = None
    """A folder of videos; the sample clips where it is not given."""
    experiment: str = "demo"
    """The experiment of `vfm pretrain`."""
    steps: int | None = None
    """Training steps; the experiment's where not given."""
    max_captions: int = 8
    """Captions that are generated, each once with its own caption and once with another."""
    guidance_scale: float = 1.2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"steps must be at least 1, got {self.steps}")
        if self.max_captions < 2:
            raise ConfigError(f"max_captions must be at least 2, got {self.max_captions}")

    @property
    def folder(self) -> str:
        """Where the demo lies."""
        if self.output is not None:
            return self.output
        name = Path(self.videos).resolve().name if self.videos is not None else ""
        return f"demo_out_{name}" if name else "demo_out"
