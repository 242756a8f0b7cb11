"""From prompts to videos."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common import rng
from common.errors import ConfigError, VfmError
from inference.config import SamplerConfig
from inference.guidance import guided
from inference.loading import Generator
from inference.samplers import SAMPLERS, Path, flow_sigmas, karras_sigmas
from models.family import reach_of
from models.objectives.config import ObjectiveConfig
from models.objectives.loss import token_noise
from models.objectives.noise import shift_of
from models.pack import Grid
from models.patch import grid_of, unpatchify
from models.tokenizers.base import latent_shape


@dataclass(frozen=True, kw_only=True)
class VideoShape:
    """What to generate: frames, pixels, and frames per second (0 for a single image)."""

    num_frames: int
    width: int
    height: int
    fps: float


@dataclass(frozen=True)
class Generated:
    """One video and the latents it was decoded from."""

    frames: Tensor
    """`uint8 [T, H, W, 3]`."""
    latents: Tensor
    """`float32 [C, t, h, w]`, unit variance."""


@torch.no_grad()
def generate(
    generator: Generator,
    prompts: Sequence[str],
    shape: VideoShape,
    sampler: SamplerConfig,
    *,
    seed: int,
    on_step: Callable[[int], None] | None = None,
) -> list[Generated]:
    """One video per prompt, all in one pack.

    The noise of video i is a function of (seed, i) alone, so a video does not depend on which
    others are made beside it.

    Raises:
        ConfigError: where the shape does not divide into tokens; it names the nearest that does.
    """
    encoding = generator.encoding
    latent = check_shape(generator, shape)
    text, lens_text = encoding.texts(prompts)
    n = len(prompts)
    fps = torch.full((n,), shape.fps if shape.num_frames > 1 else 0.0)
    layout = encoding.layout([latent] * n, lens_text, fps)
    keys = rng.keys(seed, "generate", step=0, sample_ids=[str(i) for i in range(n)])
    noise = token_noise(keys.to(encoding.device), layout, encoding.token_dim)
    sigmas, path = schedule(sampler, generator.spec.objective, layout.grids[0])
    denoise = guided(generator.denoiser, text, layout, sampler.guidance_scale)
    tokens = SAMPLERS[sampler.name](denoise, noise * sigmas[0], sigmas, on_step, path)
    if not tokens.isfinite().all():
        raise VfmError(
            "the model gave numbers that are not finite: try a smaller "
            f"sampler.guidance_scale (it is {sampler.guidance_scale:g}), or another checkpoint"
        )
    videos = encoding.frames(tokens, layout)
    latents = unpatchify(tokens / encoding.sigma_data, layout.grids, encoding.patch)
    return [Generated(v, z.cpu()) for v, z in zip(videos, latents, strict=True)]


def schedule(
    sampler: SamplerConfig, objective: ObjectiveConfig, grid: Grid
) -> tuple[list[float], Path]:
    """Noise levels of the steps, and the coordinates in which they are made."""
    name = sampler.schedule
    if name == "flow" or (name == "auto" and objective.target == "flow"):
        return flow_sigmas(sampler.num_steps, shift_of(objective, grid)), "flow"
    levels = karras_sigmas(sampler.num_steps, sampler.sigma_min, sampler.sigma_max, sampler.rho)
    return levels, "edm"


def check_shape(generator: Generator, shape: VideoShape) -> tuple[int, int, int, int]:
    """The latent `[C, t, h, w]` of a shape. Raises `ConfigError` where it does not divide, or
    lies beyond learned positions."""
    tokenizer, (patch_t, patch_h, patch_w) = generator.encoding.tokenizer, generator.encoding.patch
    # The first latent frame is one frame, each other `temporal`.
    first = 1 + tokenizer.temporal * (patch_t - 1)
    _check_divides("num_frames", shape.num_frames, tokenizer.temporal * patch_t, first)
    _check_divides("width", shape.width, tokenizer.spatial * patch_w)
    _check_divides("height", shape.height, tokenizer.spatial * patch_h)
    latent = latent_shape(tokenizer, shape.num_frames, shape.height, shape.width)
    reach, grid = reach_of(generator.spec.model), grid_of(latent, generator.encoding.patch)
    if reach is not None and any(n > most for n, most in zip(grid, reach, strict=True)):
        raise ConfigError(
            f"{shape.num_frames} frames of {shape.width}x{shape.height} are {grid} patches "
            f"(t, h, w), and the positions that this model learned reach {reach}; give a smaller "
            "num_frames, width or height"
        )
    return latent


def _check_divides(name: str, value: int, unit: int, first: int | None = None) -> None:
    """Refuses what is not `first` (`unit` itself where none is given) plus a multiple of `unit`."""
    least = unit if first is None else first
    if value >= least and (value - least) % unit == 0:
        return
    below = least + max(value - least, 0) // unit * unit
    near = f"nearest are {below} and {below + unit}" if value > least else f"the least is {least}"
    rule = f"a multiple of {unit}" if first is None else f"{first} plus a multiple of {unit}"
    raise ConfigError(f"{name}={value} must be {rule}; {near}")
