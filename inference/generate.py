"""From prompts to videos."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common import rng
from common.errors import VfmError
from inference.config import SamplerConfig, TokenSamplerConfig
from inference.guidance import guided
from inference.loading import Generator
from inference.prefix import Given
from inference.samplers import SAMPLERS, Path, flow_sigmas, karras_sigmas
from inference.shape import VideoShape, check_shape
from inference.tokens import draw_tokens
from models.autoregressive import Autoregressive
from models.objectives.config import ObjectiveConfig
from models.objectives.loss import token_noise
from models.objectives.noise import shift_of
from models.pack import Grid
from models.patch import unpatchify


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
    tokens: TokenSamplerConfig | None = None,
    seed: int,
    on_step: Callable[[int], None] | None = None,
    given: Given | None = None,
    actions: Tensor | None = None,
) -> list[Generated]:
    """One video per prompt, all in one pack.

    The noise of video i is a function of (seed, i) alone, so a video does not depend on which
    others are made beside it. All begin with what is `given`. A diffusion network makes them by
    `sampler`, an autoregressive one by `tokens`. In all is done what `actions` `[T, a]` say.

    Raises:
        ConfigError: where the shape does not divide into tokens; it names the nearest that does.
    """
    encoding = generator.encoding
    latent = check_shape(generator, shape)
    text, lens_text = encoding.texts(prompts)
    n = len(prompts)
    fps = torch.full((n,), shape.fps if shape.num_frames > 1 else 0.0)
    diffuses = not isinstance(generator.network, Autoregressive)
    prefix = given.prefix(n) if given is not None and diffuses else None
    told = encoding.actions([actions] * n, [latent[1] // encoding.patch[0]] * n)
    layout = encoding.layout([latent] * n, lens_text, fps, prefix, told)
    keys = rng.keys(seed, "generate", step=0, sample_ids=[str(i) for i in range(n)])
    keys = keys.to(encoding.device)
    if isinstance(generator.network, Autoregressive):
        codes = draw_tokens(
            generator.network,
            text,
            layout,
            tokens or TokenSamplerConfig(),
            keys,
            given=None if given is None else given.tokens[:, 1],
            on_step=on_step,
        )
        latents = encoding.latents_of(codes, layout.grids)
        return [Generated(encoding.frames_of(z), z.cpu()) for z in latents]
    noise = token_noise(keys, layout, encoding.token_dim)
    sigmas, path = schedule(sampler, generator.spec.objective, layout.grids[0])
    denoise = guided(generator.denoiser, text, layout, sampler.guidance_scale)
    if given is not None:
        denoise = given.held(denoise, layout, noise)
    made = SAMPLERS[sampler.name](denoise, noise * sigmas[0], sigmas, on_step, path)
    if not made.isfinite().all():
        raise VfmError(
            "the model gave numbers that are not finite: try a smaller "
            f"sampler.guidance_scale (it is {sampler.guidance_scale:g}), or another checkpoint"
        )
    latents = unpatchify(made / encoding.sigma_data, layout.grids, encoding.patch)
    return [Generated(encoding.frames_of(z), z.cpu()) for z in latents]


def schedule(
    sampler: SamplerConfig, objective: ObjectiveConfig, grid: Grid
) -> tuple[list[float], Path]:
    """Noise levels of the steps, and the coordinates in which they are made."""
    if sampler.path(objective.target) == "flow":
        return flow_sigmas(sampler.num_steps, shift_of(objective, grid)), "flow"
    levels = karras_sigmas(sampler.num_steps, sampler.sigma_min, sampler.sigma_max, sampler.rho)
    return levels, "edm"
