"""What is generated: frames, pixels, and what of them divides into a model's tokens."""

from dataclasses import dataclass

from common.errors import ConfigError
from inference.loading import Generator
from models.family import reach_of
from models.patch import grid_of
from models.tokenizers.base import latent_shape


@dataclass(frozen=True, kw_only=True)
class VideoShape:
    """What to generate: frames, pixels, and frames per second (0 for a single image)."""

    num_frames: int
    width: int
    height: int
    fps: float


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
