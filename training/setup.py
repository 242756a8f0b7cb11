"""From a configuration to the parts of a run: tokenizer, spec, network."""

import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from common.storage import atomic_folder
from dataloading.config import Compression
from dataloading.loader import PackedLoader
from models.spec import ModelSpec, load_tokenizer
from models.tokenizers.fit import fit_wavelet
from models.tokenizers.wavelet import WaveletTokenizer
from training.config import TrainConfig

OnStep = Callable[[int, float], None]
_FALLBACK_FPS = 24.0


def compression_of(config: TrainConfig) -> Compression:
    """How frames become tokens, before the tokenizer itself is there."""
    tokenizer = config.tokenizer
    if tokenizer.path is not None:
        loaded = WaveletTokenizer.load(Path(tokenizer.path))
        factors = loaded.temporal, loaded.spatial
    else:
        factors = tokenizer.fit.temporal, tokenizer.fit.spatial
    return Compression(temporal=factors[0], spatial=factors[1], patch=config.model.patch_size)


def get_tokenizer(
    config: TrainConfig, folder: Path, device: torch.device, on_step: OnStep | None = None
) -> WaveletTokenizer:
    """The run's tokenizer: the one in `folder`, or the given one, or one fitted now and kept there.

    A fit is a function of the configuration and the data alone, so a killed run makes the same
    one again.
    """
    if not (folder / "config.json").is_file():
        if config.tokenizer.path is not None:
            tokenizer = WaveletTokenizer.load(Path(config.tokenizer.path))
        else:
            tokenizer = fit_wavelet(
                config.tokenizer.fit,
                _training_windows(config),
                steps=config.tokenizer.fit_steps,
                seed=config.seed,
                on_step=on_step,
            )
        with atomic_folder(folder) as temporary:
            tokenizer.save(temporary)
    return load_tokenizer(folder, device)


def _training_windows(config: TrainConfig) -> list[Tensor]:
    """The first windows of the training order."""
    videos: list[Tensor] = []
    with PackedLoader(config.data, compression_of(config), split="train") as loader:
        for batch in loader:
            videos += batch.frames or []
            if len(videos) >= config.tokenizer.fit_videos:
                break
    return videos[: config.tokenizer.fit_videos]


def make_spec(config: TrainConfig, loader: PackedLoader) -> ModelSpec:
    """What a checkpoint must carry; generation defaults to the longest training window.

    Where clips keep their own frame rates, the default is their median.
    """
    width, height = config.data.size
    rates = [window.fps for window in loader.val_windows if window.fps] or [_FALLBACK_FPS]
    fps = config.data.fps or statistics.median(rates)
    return ModelSpec(
        model=config.model,
        objective=config.objective,
        text=config.text,
        num_frames=max(config.data.num_frames),
        width=width,
        height=height,
        fps=fps,
    )
