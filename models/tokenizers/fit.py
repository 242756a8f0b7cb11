"""Makes a wavelet tokenizer from footage: a closed form, then a short training of its decoder."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from common import rng
from models.initialize import fan_in_normal
from models.tokenizers.wavelet import WaveletConfig, WaveletTokenizer


def fit_wavelet(
    config: WaveletConfig,
    videos: Sequence[Tensor],
    *,
    steps: int,
    batch: int = 4,
    learning_rate: float = 2e-3,
    seed: int = 0,
    on_step: Callable[[int, float], None] | None = None,
) -> WaveletTokenizer:
    """Fits a tokenizer to videos `uint8 [T, H, W, 3]`.

    The projection is the principal component analysis of the Haar coefficients (Pearson 1901),
    exact and without iteration. The decoder's convolutions then learn, by mean squared error in
    coefficients, which the orthonormal transform makes that of the pixels, what the projection
    lost: `steps` of Adam with a linear decay. Everything is a function of the arguments alone.
    """
    tokenizer = WaveletTokenizer(config)
    _fit_projection(tokenizer, videos)
    _initialize_refiner(tokenizer, seed)
    if steps:
        _train_refiner(tokenizer, videos, steps, batch, learning_rate, seed, on_step)
    return tokenizer.eval().requires_grad_(False)


def _fit_projection(tokenizer: WaveletTokenizer, videos: Sequence[Tensor]) -> None:
    k = tokenizer.mean.numel()
    count, total = 0, torch.zeros(k, dtype=torch.float64)
    outer = torch.zeros(k, k, dtype=torch.float64)
    for video in videos:
        flat = tokenizer.coefficients(video).flatten(1)
        count += flat.shape[1]
        total += flat.sum(1, dtype=torch.float64)
        outer += (flat @ flat.T).double()
    mean = total / count
    values, vectors = torch.linalg.eigh(outer / count - torch.outer(mean, mean))
    basis = vectors.T.flip(0)[: tokenizer.channels]
    # An eigenvector's sign is arbitrary; fix it, so that equal footage gives equal latents.
    largest = basis.gather(1, basis.abs().argmax(1, keepdim=True))
    tokenizer.mean.copy_(mean)
    tokenizer.basis.copy_(basis * largest.sign())
    # Flat footage has directions without variance; the floor keeps them from being blown up.
    variance = values.flip(0)[: tokenizer.channels].clamp(min=1e-6 * float(values[-1]) + 1e-12)
    scale = variance ** (tokenizer.config.whitening / 2)
    # Whatever the whitening, the mean variance of the channels becomes 1.
    tokenizer.scale.copy_(scale * (variance / scale**2).mean().sqrt())


def _initialize_refiner(tokenizer: WaveletTokenizer, seed: int) -> None:
    """Each block starts as the identity and the whole as no correction at all."""
    for name, parameter in tokenizer.refiner.named_parameters():
        with torch.no_grad():
            if name.endswith("bias") or "second" in name or name.startswith("leave"):
                parameter.zero_()
            else:
                parameter.copy_(fan_in_normal(name, parameter, seed))


def _train_refiner(
    tokenizer: WaveletTokenizer,
    videos: Sequence[Tensor],
    steps: int,
    batch: int,
    learning_rate: float,
    seed: int,
    on_step: Callable[[int, float], None] | None,
) -> None:
    refiner = tokenizer.refiner.requires_grad_(True)
    optimizer = torch.optim.Adam(refiner.parameters(), lr=learning_rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for step in range(steps):
        key = rng.key(seed, "tokenizer_batch", step=step)
        chosen = [videos[rng.integer(key, len(videos), i)] for i in range(batch)]
        loss = torch.zeros(())
        for video in chosen:
            target = tokenizer.coefficients(video)
            loss = loss + (tokenizer.unproject(tokenizer.project(target)) - target).square().mean()
        optimizer.zero_grad()
        (loss / batch).backward()
        optimizer.step()
        scheduler.step()
        if on_step:
            on_step(step + 1, float(loss.detach()) / batch)
