"""What `vfm generate` does: a checkpoint and a prompt to a video file."""

import os
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from common.errors import ConfigError
from common.media import write_video
from common.storage import write_atomic
from inference.config import GenerateConfig
from inference.generate import VideoShape, check_shape, generate
from inference.loading import Generator, load_generator


def open_generator(config: GenerateConfig) -> tuple[Generator, VideoShape]:
    """Loads the checkpoint and settles the shape.

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
    return generator, shape


def generate_file(
    generator: Generator, shape: VideoShape, config: GenerateConfig, config_yaml: str
) -> Path:
    """Generates, writes the video, and beside it the settings that made it."""
    with Progress(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("denoising", total=config.sampler.num_steps)
        (video,) = generate(
            generator,
            [config.prompt],
            shape,
            config.sampler,
            seed=config.seed,
            on_step=lambda done: bars.update(bar, completed=done),
        )
    path = Path(config.output)
    write_video(path, video.frames.numpy(), fps=shape.fps)
    write_atomic(path.with_suffix(".yaml"), config_yaml.encode())
    return path
