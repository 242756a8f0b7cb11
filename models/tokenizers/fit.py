"""Makes a tokenizer from footage: a closed form, then training."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from common import rng
from models.initialize import fan_in_normal
from models.tokenizers.causal import CausalConfig, CausalTokenizer, to_pixels
from models.tokenizers.layers import Block, SpatialAttention, Stream, TemporalAttention
from models.tokenizers.recipe import (
    Critic,
    RecipeConfig,
    kl_loss,
    learning_rate,
    reconstruction_loss,
)

OnStep = Callable[[int, float], None]


def fit_tokenizer(
    config: CausalConfig,
    videos: Sequence[Tensor],
    recipe: RecipeConfig,
    *,
    seed: int = 0,
    device: torch.device | None = None,
    batches: Iterable[Tensor] | None = None,
    on_step: OnStep | None = None,
) -> CausalTokenizer:
    """A tokenizer for footage like `videos`, `uint8 [T, H, W, 3]` each.

    The linear code is the principal component analysis of the Haar coefficients (Pearson 1901),
    exact and without iteration. The networks then learn what it loses. At last the statistics of
    every channel are measured, so that latents have zero mean and the spread that
    `config.whitening` asks for. Everything is a function of the arguments alone.

    Args:
        batches: `uint8 [B, T, H, W, 3]` to train on; drawn from `videos` where not given.
        on_step: told the steps done and the loss.
    """
    tokenizer = CausalTokenizer(config).to(device or torch.device("cpu"))
    spread = _fit_projection(tokenizer, videos)
    _initialize(tokenizer, seed)
    if recipe.steps:
        source = iter(batches) if batches is not None else _draw(videos, recipe.batch, seed)
        _train(tokenizer, recipe, source, seed, on_step)
    tokenizer.eval().requires_grad_(False)
    _measure(tokenizer, videos, spread)
    return tokenizer


def _fit_projection(tokenizer: CausalTokenizer, videos: Sequence[Tensor]) -> Tensor:
    """Fills the linear code; returns the spread (standard deviations) wanted of the channels."""
    device = tokenizer.mean.device
    k = tokenizer.mean.numel()
    count, total = 0, torch.zeros(k, dtype=torch.float64, device=device)
    outer = torch.zeros(k, k, dtype=torch.float64, device=device)
    front = torch.zeros(tokenizer.inputs.numel(), dtype=torch.float64, device=device)
    places = 0
    for video in videos:
        pixels = to_pixels(video.to(device))[None]
        flat = tokenizer.coefficients(pixels)[0].flatten(1)
        count += flat.shape[1]
        total += flat.sum(1, dtype=torch.float64)
        outer += (flat @ flat.T).double()
        fine = tokenizer.front_coefficients(pixels)
        fine = fine[0].flatten(1)
        front += fine.square().sum(1, dtype=torch.float64)
        places += fine.shape[1]
    mean = total / count
    values, vectors = torch.linalg.eigh(outer / count - torch.outer(mean, mean))
    basis = vectors.T.flip(0)[: tokenizer.channels]
    # An eigenvector's sign is arbitrary; fix it, so that equal footage gives equal latents.
    largest = basis.gather(1, basis.abs().argmax(1, keepdim=True))
    tokenizer.mean.copy_(mean)
    tokenizer.basis.copy_(basis * largest.sign())
    # Flat footage has directions without variance; the floor keeps them from being blown up.
    variance = values.flip(0)[: tokenizer.channels].clamp(min=1e-6 * float(values[-1]) + 1e-12)
    tokenizer.deviation.copy_(variance.sqrt())
    rms = (front / places).sqrt()
    tokenizer.inputs.copy_(rms.clamp(min=1e-3 * float(rms.max()) + 1e-6))
    wanted = variance ** (0.5 * (1 - tokenizer.config.whitening))
    # Whatever the whitening, the mean variance of the channels becomes 1.
    return wanted / wanted.square().mean().sqrt()


def _initialize(tokenizer: CausalTokenizer, seed: int) -> None:
    """Each block starts as the identity and each network as no correction at all."""
    zero = {f"{side}.leave.weight" for side in ("encoder", "decoder")}
    for name, module in tokenizer.named_modules():
        if isinstance(module, Block):
            zero.add(f"{name}.temporal.conv.weight")
        elif isinstance(module, SpatialAttention | TemporalAttention):
            zero |= {f"{name}.out.weight", f"{name}.bias"}
    for name, parameter in tokenizer.named_parameters():
        with torch.no_grad():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif parameter.ndim < 2 or name in zero:
                parameter.zero_()
            else:
                parameter.copy_(fan_in_normal(name, parameter, seed))


def _draw(videos: Sequence[Tensor], batch: int, seed: int) -> Iterator[Tensor]:
    """Batches of one shape each, every video equally likely to set it."""
    alike: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
    for video in videos:
        alike[tuple(video.shape)].append(video)
    step = 0
    while True:
        key = rng.key(seed, "tokenizer_batch", step=step)
        group = alike[tuple(videos[rng.integer(key, len(videos))].shape)]
        yield torch.stack([group[rng.integer(key, len(group), 1 + i)] for i in range(batch)])
        step += 1


def _train(
    tokenizer: CausalTokenizer,
    recipe: RecipeConfig,
    batches: Iterator[Tensor],
    seed: int,
    on_step: OnStep | None,
) -> None:
    device = tokenizer.mean.device
    tokenizer.train().requires_grad_(True)
    optimizer = torch.optim.AdamW(
        tokenizer.parameters(), lr=recipe.lr, betas=(0.9, 0.99), weight_decay=0.0, fused=True
    )
    critic = _Opponent(recipe, seed, device) if recipe.adversarial else None
    for step in range(recipe.steps):
        real = to_pixels(next(batches).to(device))
        mean, log_variance = tokenizer.posterior(real, Stream(keeps=False), first=True)
        terms: dict[str, Tensor] = {}
        raw = mean
        # The divergence bounds what a continuous latent tells; a grid does by itself.
        if recipe.kl and not tokenizer.num_codes:
            key = rng.key(seed, "tokenizer_noise", step=step).to(device)
            rows = torch.arange(-(-mean.numel() // 4), device=device)
            noise = rng.normal_rows(key, rows, 4).flatten()[: mean.numel()].view_as(mean)
            raw = mean + (0.5 * log_variance).exp() * noise
            terms["kl"] = recipe.kl * kl_loss(mean, log_variance)
        made = tokenizer.reconstruct(tokenizer.quantized(raw), Stream(keeps=False), first=True)
        terms |= reconstruction_loss(recipe, made, real)
        if critic is not None and step >= recipe.adversarial_from:
            terms["adversarial"] = -recipe.adversarial * critic.network(made).mean()
        loss = torch.stack(list(terms.values())).sum()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(tokenizer.parameters(), 1.0)
        optimizer.step()
        if critic is not None:
            critic.learn(made, real)
        if on_step:
            on_step(step + 1, float(loss.detach()))


class _Opponent:
    """A critic and its optimizer."""

    def __init__(self, recipe: RecipeConfig, seed: int, device: torch.device) -> None:
        self.network = Critic(recipe.critic_width).to(device)
        for name, parameter in self.network.named_parameters():
            if parameter.ndim > 1:
                with torch.no_grad():
                    parameter.copy_(fan_in_normal(f"critic.{name}", parameter, seed))
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=recipe.lr / 4, betas=(0.5, 0.9), weight_decay=0.0
        )

    def learn(self, made: Tensor, real: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.network.loss(made, real).backward()
        self.optimizer.step()


@torch.no_grad()
def _measure(tokenizer: CausalTokenizer, videos: Sequence[Tensor], spread: Tensor) -> None:
    """Statistics of every channel over `videos`, into `shift` and `scale`."""
    count = 0
    total, square = torch.zeros_like(spread), torch.zeros_like(spread)
    for video in videos:
        # Still the raw latents: shift is 0 and scale 1.
        flat = tokenizer.encode(video).flatten(1).double()
        count += flat.shape[1]
        total += flat.sum(1)
        square += flat.square().sum(1)
    mean = total / count
    deviation = (square / count - mean**2).clamp(min=1e-12).sqrt()
    tokenizer.shift.copy_(mean)
    # What does not vary keeps its size.
    tokenizer.scale.copy_(torch.where(deviation > 1e-3, spread / deviation, spread))
