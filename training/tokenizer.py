"""What `vfm tokenizer` does: trains a tokenizer on windows of curated shards."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from common.errors import ConfigError
from common.rng import check_seed
from common.storage import write_atomic
from dataloading.config import Compression, LoaderConfig
from dataloading.loader import PackedLoader
from models.encoding import choose_device
from models.tokenizers.base import VideoTokenizer, psnr_db
from models.tokenizers.causal import CausalConfig
from models.tokenizers.fit import fit_tokenizer
from models.tokenizers.quality import ssim
from models.tokenizers.recipe import RecipeConfig
from training.progress import RunProgress
from training.setup import first_windows

HELD_OUT = 64
"""Windows that are measured at the end, at most."""


@dataclass(kw_only=True)
class TokenizerConfig:
    """A tokenizer for the footage of `data`. `output` is the folder that `tokenizer.path` takes."""

    data: LoaderConfig
    output: str
    tokenizer: CausalConfig = field(default_factory=CausalConfig)
    recipe: RecipeConfig = field(default_factory=RecipeConfig)
    fit_videos: int = 256
    """Windows that the linear code and the statistics of the channels are made from, at most."""
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.fit_videos < 1:
            raise ConfigError(f"fit_videos must be at least 1, got {self.fit_videos}")


@dataclass(frozen=True)
class Quality:
    """Means over the held-out windows; None where nothing is held out."""

    windows: int
    psnr_db: float | None
    ssim: float | None


class TokenizerRun:
    """Raises `ConfigError` or `DataError` before any work where the request cannot be met."""

    def __init__(self, config: TokenizerConfig, console: Console) -> None:
        self.config, self.console = config, console
        self.device = choose_device(config.device)
        self.output = Path(config.output)
        if (self.output / "config.json").exists() or self.output.is_file():
            raise ConfigError(f"output={self.output} is there already; give another folder")
        shape = config.tokenizer
        self.compression = Compression(
            temporal=shape.temporal, spatial=shape.spatial, patch=(1, 1, 1)
        )
        self.held_out = PackedLoader(config.data, self.compression, split="val")
        self.loader = PackedLoader(config.data, self.compression, split="train")

    def plan(self) -> list[str]:
        """What `run` would do, in lines for a person."""
        data = self.loader.describe()
        recipe = self.config.recipe
        return [
            f"data: {data['samples_per_epoch']} clips, "
            f"{int(self.held_out.describe()['samples_per_epoch'])} windows held out",
            f"{recipe.steps} steps of {recipe.batch} windows on {self.device}",
        ]

    def run(self, on_start: Callable[[], None] = lambda: None) -> Quality:
        """Trains, measures on held-out windows, and saves, the tokenizer's files last."""
        config = self.config
        on_start()
        losses: list[str] = []
        videos = first_windows(config.data, self.compression, config.fit_videos)
        with (
            self.loader,
            RunProgress(self.console) as progress,
            progress.task("tokenizer", config.recipe.steps) as report,
        ):

            def on_step(step: int, loss: float) -> None:
                report(step, loss)
                losses.append(json.dumps({"step": step, "loss": loss}))

            tokenizer = fit_tokenizer(
                config.tokenizer,
                videos,
                config.recipe,
                seed=config.seed,
                device=self.device,
                batches=_of_one_shape(self.loader, config.recipe.batch),
                on_step=on_step,
            )
        quality = self._measure(tokenizer)
        if quality.windows:
            losses.append(
                json.dumps(
                    {
                        "step": config.recipe.steps,
                        "psnr_db": quality.psnr_db,
                        "ssim": quality.ssim,
                        "windows": quality.windows,
                    }
                )
            )
        write_atomic(self.output / "metrics.jsonl", "".join(f"{s}\n" for s in losses).encode())
        tokenizer.save(self.output)
        return quality

    def _measure(self, tokenizer: VideoTokenizer) -> Quality:
        with self.held_out:
            videos = [v for batch in self.held_out for v in batch.frames or []]
        pairs = [(tokenizer.decode(tokenizer.encode(v)).cpu(), v) for v in videos[:HELD_OUT]]
        if not pairs:
            return Quality(0, None, None)
        return Quality(
            len(pairs),
            sum(psnr_db(*pair) for pair in pairs) / len(pairs),
            sum(ssim(*pair) for pair in pairs) / len(pairs),
        )


def _of_one_shape(loader: PackedLoader, size: int) -> Iterator[Tensor]:
    """Windows in the loader's order, as batches `uint8 [size, T, H, W, 3]`, each of one shape."""
    waiting: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
    for batch in loader:
        for video in batch.frames or []:
            alike = waiting[tuple(video.shape)]
            alike.append(video)
            if len(alike) == size:
                yield torch.stack(alike)
                alike.clear()
