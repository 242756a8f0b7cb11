"""Our tokenizer against block transforms that keep as many coefficients."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from einops import rearrange
from torch import Tensor

from benchmarks.row import Row
from models.tokenizers.base import VideoTokenizer, psnr_db
from models.tokenizers.causal import CausalConfig, to_bytes, to_pixels
from models.tokenizers.fit import fit_tokenizer
from models.tokenizers.quality import ssim
from models.tokenizers.recipe import RecipeConfig

HELP = """
how well tokenizers reconstruct footage that they were not fitted to

Windows of a curated folder: those of the training split fit, those held out are measured. All
subjects keep `channels` numbers for each block of `temporal` x `spatial` x `spatial` pixels. The
DCT is orthonormal in time, space and colour (YCbCr-like), causal as ours is, and keeps the
coefficients of the greatest variance in the training windows, the best choice it can make. The
rest are ours: the linear code alone, the demo's, one with an encoder network, and one by the whole
recipe (L1, perceptual, KL). Seconds are processor time of the fit.

The last rows stream a clip of 41 frames and one ten times as long through encoder and decoder, in
pieces, and give the growth of the process's peak memory.

examples:
  vfm bench tokenizer path=curated
  vfm bench tokenizer path=curated steps=400 json=tokenizer.json
"""


@dataclass(kw_only=True)
class Settings:
    path: str = "curated"
    """A curated folder."""
    width: int = 128
    height: int = 96
    num_frames: int = 9
    fps: float = 24.0
    windows: int = 128
    """Training windows, at most."""
    temporal: int = 4
    spatial: int = 8
    channels: int = 16
    steps: int = 200
    lr: float = 4e-3


class BlockDCT:
    """Keeps the same `channels` coefficients of each block's orthonormal DCT-II."""

    def __init__(
        self, temporal: int, spatial: int, channels: int, videos: Sequence[Tensor]
    ) -> None:
        self.temporal, self.spatial = temporal, spatial
        space = dct_matrix(spatial)
        block = torch.kron(dct_matrix(temporal), torch.kron(space, space))
        basis = torch.kron(_COLOURS, block).float()
        flat = torch.cat([self._blocks(v) for v in videos])
        self.mean = flat.mean(0)
        variance = ((flat - self.mean) @ basis.T).square().mean(0)
        self.rows = basis[variance.argsort(descending=True)[:channels]]

    def reconstruct(self, video: Tensor) -> Tensor:
        """`uint8 [T, H, W, 3]` to the same after only the kept coefficients are left."""
        num_frames, height, width, _ = video.shape
        flat = (self._blocks(video) - self.mean) @ self.rows.T @ self.rows + self.mean
        pixels = rearrange(
            flat,
            "(t h w) (c dt dh dw) -> c (t dt) (h dh) (w dw)",
            c=3,
            h=height // self.spatial,
            w=width // self.spatial,
            dt=self.temporal,
            dh=self.spatial,
            dw=self.spatial,
        )
        return to_bytes(pixels[:, self.temporal - 1 :])[:num_frames]

    def _blocks(self, video: Tensor) -> Tensor:
        pixels = to_pixels(video)
        before = pixels[:, :1].expand(-1, self.temporal - 1, -1, -1)
        return rearrange(
            torch.cat([before, pixels], dim=1),
            "c (t dt) (h dh) (w dw) -> (t h w) (c dt dh dw)",
            dt=self.temporal,
            dh=self.spatial,
            dw=self.spatial,
        )


def dct_matrix(size: int) -> Tensor:
    """Orthonormal DCT-II, `float64 [size, size]` (Ahmed, Natarajan and Rao 1974)."""
    k = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi / size * (k[None] + 0.5) * k[:, None]) * (2 / size) ** 0.5
    matrix[0] /= 2**0.5
    return matrix


# Grey, blue-yellow, red-cyan: an orthonormal stand-in for YCbCr.
_COLOURS = (
    torch.tensor([[1, 1, 1], [-1, -1, 2], [1, -1, 0]], dtype=torch.float64)
    / torch.tensor([[3.0], [6.0], [2.0]], dtype=torch.float64).sqrt()
)


def measure(settings: Settings) -> Iterator[Row]:
    training, held_out = windows(settings)
    case = f"{len(held_out)} held-out windows, {settings.num_frames}x{settings.width}x" + (
        f"{settings.height}"
    )
    began = time.process_time()
    dct = BlockDCT(settings.temporal, settings.spatial, settings.channels, training)
    taken = time.process_time() - began
    subject = f"3D DCT, {settings.channels} coefficients"
    yield from _quality(case, subject, [dct.reconstruct(v) for v in held_out], held_out, taken)
    steps = settings.steps
    squared = RecipeConfig(steps=steps, lr=settings.lr, l1=0.0, l2=1.0, perceptual=0.0, kl=0.0)
    linear = CausalConfig(
        temporal=settings.temporal,
        spatial=settings.spatial,
        channels=settings.channels,
        haar=[settings.temporal, settings.spatial],
    )
    network = replace(linear, encoder_blocks=1)
    attention = replace(network, attention_blocks=1, attention_window=4)
    subjects = {
        "ours, linear code": (linear, replace(squared, steps=0)),
        f"ours, demo, {steps} steps": (linear, squared),
        f"ours, encoder too, {steps} steps": (network, squared),
        f"ours, attention too, {steps} steps": (attention, squared),
        f"ours, L1 + perceptual + KL, {steps} steps": (
            network,
            RecipeConfig(steps=steps, lr=settings.lr),
        ),
    }
    tokenizer: VideoTokenizer | None = None
    for subject, (config, recipe) in subjects.items():
        began = time.process_time()
        tokenizer = fit_tokenizer(config, training, recipe)
        taken = time.process_time() - began
        made = [tokenizer.decode(tokenizer.encode(v)) for v in held_out]
        yield from _quality(case, subject, made, held_out, taken)
    assert tokenizer is not None
    yield from _streaming(settings, tokenizer)


def windows(settings: Settings) -> tuple[list[Tensor], list[Tensor]]:
    """Training and held-out windows of the folder."""
    from dataloading.config import Compression, LoaderConfig
    from dataloading.loader import PackedLoader

    compression = Compression(temporal=settings.temporal, spatial=settings.spatial, patch=(1, 1, 1))
    tokens = compression.tokens(settings.num_frames, settings.width, settings.height)
    config = LoaderConfig(
        path=settings.path,
        token_budget=tokens,
        num_frames=[settings.num_frames],
        size=[settings.width, settings.height],
        fps=settings.fps,
    )
    found: list[list[Tensor]] = []
    for split in ("train", "val"):
        videos: list[Tensor] = []
        with PackedLoader(config, compression, split=split) as loader:
            for batch in loader:
                videos += batch.frames or []
                if len(videos) >= settings.windows:
                    break
        found.append(videos[: settings.windows])
    return found[0], found[1]


def _quality(
    case: str, subject: str, made: list[Tensor], real: list[Tensor], taken: float
) -> Iterator[Row]:
    pairs = list(zip(made, real, strict=True))
    values = {
        ("psnr", "dB"): sum(psnr_db(a, b) for a, b in pairs) / len(pairs),
        ("ssim", "1"): sum(ssim(a, b) for a, b in pairs) / len(pairs),
        ("fit", "cpu-s"): taken,
    }
    for (metric, unit), value in values.items():
        yield Row(
            benchmark="tokenizer",
            case=case,
            subject=subject,
            metric=metric,
            value=value,
            unit=unit,
        )


def _streaming(settings: Settings, tokenizer: VideoTokenizer) -> Iterator[Row]:
    import resource

    frame = torch.zeros(1, settings.height, settings.width, 3, dtype=torch.uint8)
    for num_frames in (41, 401):
        latents = tokenizer.encode_stream(frame for _ in range(num_frames))
        count = sum(part.shape[0] for part in tokenizer.decode_stream(latents))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        yield Row(
            benchmark="tokenizer",
            case=f"streaming {count} frames",
            subject="ours, the last above",
            metric="peak memory",
            value=peak,
            unit="MiB",
        )
