"""What `vfm generate` does: a checkpoint and a prompt to a video file."""

import math
import os
from dataclasses import dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from common.errors import ConfigError
from common.media import write_video
from common.storage import write_atomic
from inference.actions import read_actions
from inference.config import GenerateConfig, SamplerConfig, TokenSamplerConfig
from inference.generate import generate
from inference.loading import Generator, load_generator
from inference.prefix import Given, read_given
from inference.shape import VideoShape, check_shape
from models.tokenizers.base import latent_shape


@dataclass(frozen=True)
class Request:
    """A model, and what it is to make."""

    generator: Generator
    shape: VideoShape
    given: Given | None
    """What the video begins with."""
    actions: Tensor | None = None
    """What is done in its frames."""


def open_request(config: GenerateConfig) -> Request:
    """Loads the checkpoint, settles the shape and reads what is given.

    Raises `ConfigError` or `DataError` for whatever cannot work, before anything is computed.
    """
    folder = Path(config.output).absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"output={config.output}: {folder} cannot be written")
    if Path(config.output).is_dir():
        raise ConfigError(f"output={config.output} is a folder; give a file name")
    generator = load_generator(
        Path(config.checkpoint),
        weights=config.weights,
        ema_width=config.ema_width,
        adapter=None if config.lora is None else Path(config.lora),
        device=config.device,
    )
    spec = generator.spec
    shape = VideoShape(
        num_frames=config.num_frames or spec.num_frames,
        width=config.width or spec.width,
        height=config.height or spec.height,
        fps=config.fps or spec.fps,
    )
    check_shape(generator, shape)
    _check_samplers(config, spec.objective.target)
    frames, given = read_given(config, generator, shape), None
    if frames is not None:
        given = Given.of(frames, generator.encoding, config.prefix_sigma)
    return Request(generator, shape, given, read_actions(config, generator, shape))


def generate_file(request: Request, config: GenerateConfig, config_yaml: str) -> Path:
    """Generates, writes the video, and beside it the settings that made it."""
    with Progress(console=Console(stderr=True), transient=True) as bars:
        encoding, shape = request.generator.encoding, request.shape
        num, name = config.sampler.num_steps, "denoising"
        if encoding.discrete:
            latent = latent_shape(encoding.tokenizer, shape.num_frames, shape.height, shape.width)
            num, name = math.prod(latent[1:]), "drawing tokens"
        bar = bars.add_task(name, total=num)
        (video,) = generate(
            request.generator,
            [config.prompt],
            request.shape,
            config.sampler,
            tokens=config.tokens,
            seed=config.seed,
            given=request.given,
            actions=request.actions,
            on_step=lambda done: bars.update(bar, completed=done),
        )
    path = Path(config.output)
    write_video(path, video.frames.numpy(), fps=request.shape.fps)
    write_atomic(path.with_suffix(".yaml"), config_yaml.encode())
    return path


def _check_samplers(config: GenerateConfig, target: str) -> None:
    """Refuses settings of the sampler that a model of this target has no use for."""
    discrete = target == "next_token"
    if not discrete:
        config.sampler.path(target)
    if discrete and config.prefix_sigma:
        raise ConfigError(
            f"prefix_sigma={config.prefix_sigma}: an autoregressive model holds to what is given "
            "as it is; leave it out"
        )
    unused, default, name, kind = (
        (config.sampler, SamplerConfig(), "sampler", "tokens")
        if discrete
        else (config.tokens, TokenSamplerConfig(), "tokens", "sampler")
    )
    given = [f.name for f in fields(unused) if getattr(unused, f.name) != getattr(default, f.name)]
    if given:
        raise ConfigError(
            f"{name}.{given[0]}={getattr(unused, given[0])} says nothing to this model, which is "
            f"{'autoregressive' if discrete else 'a diffusion model'}: give {kind}.* instead"
        )
