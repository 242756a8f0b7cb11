"""Whether the demo's model learned its captions: generated video against held-out windows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from dataloading.batch import Batch
from dataloading.config import LoaderConfig
from dataloading.loader import PackedLoader
from inference.config import SamplerConfig
from inference.generate import Generated, generate
from inference.loading import Generator
from inference.shape import VideoShape
from models.tokenizers.base import VideoTokenizer, psnr_db
from models.tokenizers.dct import BlockDCT
from models.tokenizers.quality import ssim
from training.config import TrainConfig
from training.setup import compression_of, first_windows

MAX_WINDOWS = 64


@dataclass(frozen=True)
class HeldOut:
    """A window that training never saw."""

    clip_id: str
    caption: str
    frames: Tensor
    """`uint8 [T, H, W, 3]`."""


@dataclass(frozen=True)
class Comparison:
    """Videos generated for captions, held against every held-out window."""

    chosen: list[HeldOut]
    """The windows whose captions were generated; row i of the distances belongs to number i."""
    columns: list[HeldOut]
    generated: list[Generated]
    shuffled: list[Generated]
    """The same noise under the caption of the next row."""
    distances: Tensor
    """`[rows, columns]`: mean squared distance of latents."""
    shuffled_distances: Tensor

    @property
    def matched(self) -> int:
        """Rows whose nearest window shows a clip of their caption."""
        return self._count(self.distances)

    @property
    def shuffled_matched(self) -> int:
        """As `matched`, for videos made with another row's caption."""
        return self._count(self.shuffled_distances)

    def _count(self, distances: Tensor) -> int:
        nearest = distances.argmin(dim=1).tolist()
        pairs = zip(self.chosen, nearest, strict=True)
        return sum(row.caption == self.columns[j].caption for row, j in pairs)


def held_out_windows(config: TrainConfig, shape: VideoShape) -> list[HeldOut]:
    """The held-out windows of the shape that will be generated, one per clip at most."""
    data: LoaderConfig = config.data
    with PackedLoader(data, compression_of(config), split="val") as loader:
        batches: list[Batch] = list(islice(loader, MAX_WINDOWS))
    windows = [
        HeldOut(sample_id.split(":")[0], caption, frames)
        for batch in batches
        for sample_id, caption, frames in zip(
            batch.sample_ids, batch.captions, batch.frames or [], strict=True
        )
        if frames.shape == (shape.num_frames, shape.height, shape.width, 3)
    ]
    return windows[:MAX_WINDOWS]


def compare(
    generator: Generator,
    windows: Sequence[HeldOut],
    shape: VideoShape,
    sampler: SamplerConfig,
    *,
    max_captions: int,
    seed: int,
    on_step: Callable[[int], None] | None = None,
) -> Comparison | None:
    """Generates a video for each of up to `max_captions` captions, and one more under another's.

    None where fewer than two captions differ, since then nothing can be told apart.
    """
    first_of: dict[str, HeldOut] = {}
    for window in windows:
        if window.caption:
            first_of.setdefault(window.caption, window)
    chosen = list(first_of.values())[:max_captions]
    if len(chosen) < 2:
        return None
    captions = [w.caption for w in chosen]
    exchanged = captions[1:] + captions[:1]
    made = generate(generator, captions, shape, sampler, seed=seed, on_step=on_step)
    other = generate(generator, exchanged, shape, sampler, seed=seed, on_step=on_step)
    tokenizer = generator.encoding.tokenizer
    targets = torch.stack([tokenizer.encode(w.frames).cpu() for w in windows])
    return Comparison(
        chosen=chosen,
        columns=list(windows),
        generated=made,
        shuffled=other,
        distances=_distances(made, targets),
        shuffled_distances=_distances(other, targets),
    )


def _distances(videos: Sequence[Generated], targets: Tensor) -> Tensor:
    latents = torch.stack([video.latents for video in videos])
    return (latents[:, None] - targets[None]).square().flatten(2).mean(-1)


def reconstruction(
    tokenizer: VideoTokenizer, config: TrainConfig, windows: Sequence[HeldOut]
) -> dict[str, tuple[float, float]]:
    """Mean PSNR (dB) and SSIM of held-out windows, as `TokenizerFacts.quality`.

    Beside the tokenizer stands a block transform that keeps as many numbers, those which vary most
    in the windows that the tokenizer was fitted to.
    """
    fitted = first_windows(config.data, compression_of(config), config.tokenizer.fit_videos)
    dct = BlockDCT(tokenizer.temporal, tokenizer.spatial, tokenizer.channels, fitted)
    real = [window.frames for window in windows]
    made = {
        "This tokenizer": [tokenizer.decode(tokenizer.encode(v)).cpu() for v in real],
        f"3D DCT, {tokenizer.channels} coefficients a block": [dct.reconstruct(v) for v in real],
    }
    return {
        name: (
            sum(psnr_db(a, b) for a, b in zip(videos, real, strict=True)) / len(real),
            sum(ssim(a, b) for a, b in zip(videos, real, strict=True)) / len(real),
        )
        for name, videos in made.items()
    }
