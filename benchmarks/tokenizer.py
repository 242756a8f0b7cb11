"""Our tokenizer against block transforms that keep as many coefficients."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks._apart import apart
from benchmarks.row import Row
from models.tokenizers.base import psnr_db
from models.tokenizers.causal import CausalConfig, CausalTokenizer
from models.tokenizers.dct import BlockDCT
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

The last rows put a clip of 81 frames through encoder and decoder in pieces and as a whole. Then
clips of 81 and of 801 frames go through in pieces, each in a process of its own, whose peak memory
they give.

examples:
  vfm bench tokenizer path=curated
  vfm bench tokenizer path=curated steps=400 json=tokenizer.json
"""

SHORT, LONG = 81, 801
"""Frames of the clips that are streamed."""


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
    tokenizer: CausalTokenizer | None = None
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


def _streaming(settings: Settings, tokenizer: CausalTokenizer) -> Iterator[Row]:
    """Whether pieces give what the whole gives, and what a longer clip costs in memory."""

    def row(case: str, metric: str, value: float | None, unit: str) -> Row:
        subject = "ours, the last above"
        return Row(
            benchmark="tokenizer", case=case, subject=subject, metric=metric, value=value, unit=unit
        )

    with TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(folder)
        case = f"{SHORT} frames in pieces, against the whole"
        for metric, value in _apart_from_whole(folder, settings).items():
            yield row(case, f"largest difference of {metric}", value, "1")
        peaks: list[float] = []
        for num_frames in (SHORT, LONG):
            case = f"streaming {num_frames} frames"
            found, why = apart(600.0, _memory_of_stream, folder, settings, num_frames)
            if found is None:
                yield row(case, "peak memory", None, why)
                continue
            before, peak = found
            peaks.append(peak)
            yield row(case, "peak memory", peak, "MiB")
            yield row(case, "of which the clip", peak - before, "MiB")
        if len(peaks) == 2:
            case = f"streaming {LONG} frames, against {SHORT}"
            yield row(case, "peak memory ratio", peaks[1] / peaks[0], "1")


def _frames(settings: Settings, num_frames: int) -> Iterator[Tensor]:
    """Frames of a moving pattern, one at a time."""
    y = torch.arange(settings.height)[:, None, None]
    x = torch.arange(settings.width)[:, None]
    for t in range(num_frames):
        yield ((3 * x + 2 * y + 5 * t + 80 * torch.arange(3)) % 256).to(torch.uint8)[None]


def _apart_from_whole(folder: Path, settings: Settings) -> dict[str, float]:
    """Largest difference of latents, and of frames in levels of 255, between pieces and whole."""
    pieces, whole = CausalTokenizer.load(folder), CausalTokenizer.load(folder)
    whole.piece = SHORT
    video = torch.cat(list(_frames(settings, SHORT)))
    latents = whole.encode(video)
    streamed = torch.cat(list(pieces.encode_stream(_frames(settings, SHORT))), dim=1)
    shown = [t.decode(latents).int() for t in (pieces, whole)]
    return {
        "latents": float((streamed - latents).abs().max()),
        "frames": float((shown[0] - shown[1]).abs().max()),
    }


def _memory_of_stream(folder: Path, settings: Settings, num_frames: int) -> tuple[float, float]:
    """MiB of this process before a clip goes through the tokenizer, and at most until its end."""
    tokenizer = CausalTokenizer.load(folder)
    before = _status_mib("VmRSS")
    latents = tokenizer.encode_stream(_frames(settings, num_frames))
    count = sum(part.shape[0] for part in tokenizer.decode_stream(latents))
    assert count == num_frames
    return before, _status_mib("VmHWM")


def _status_mib(name: str) -> float:
    # Unlike getrusage's maximum, this one does not count what the process was before it began.
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(kib) / 1024
