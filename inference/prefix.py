"""Videos that begin with given pictures: reading them, and holding to them while denoising."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import torch
from torch import Tensor

from common.errors import ConfigError, MediaError
from common.media import probe, read_at
from inference.config import GenerateConfig
from inference.loading import Generator
from inference.samplers import Denoise
from inference.shape import VideoShape
from models.encoding import Encoding
from models.pack import PackLayout, Prefix


@dataclass(frozen=True)
class Given:
    """What every video of a pack begins with."""

    tokens: Tensor
    """As `Encoding.tokens` gives them, of one video."""
    len_t: int
    """Patches along t."""
    sigma: float
    """Noise that is laid on it before the network sees it."""

    @classmethod
    def of(cls, frames: Tensor, encoding: Encoding, sigma: float) -> "Given":
        """`frames uint8 [T, H, W, 3]`, as many as `trained_frames` allows."""
        frames_per_patch = encoding.tokenizer.temporal * encoding.patch[0]
        len_t = (frames.shape[0] + frames_per_patch - 1) // frames_per_patch
        return cls(encoding.tokens([frames]), len_t, sigma)

    def prefix(self, num_samples: int) -> Prefix:
        """For the layout of `num_samples` videos."""
        sigma = torch.full((num_samples,), self.sigma, device=self.tokens.device)
        return Prefix((self.len_t,) * num_samples, sigma)

    def held(self, denoise: Denoise, layout: PackLayout, noise: Tensor) -> Denoise:
        """`denoise` for videos of which the given part is known, whatever the solver makes of it:
        its denoised value is what is given, so that every path ends there."""
        where = layout.in_prefix
        clean = self.tokens.repeat(len(layout.grids), 1)
        shown = clean + self.sigma * noise[where]

        def known(x: Tensor, sigma: float) -> Tensor:
            x = x.clone()
            x[where] = shown.to(x.dtype)
            made = denoise(x, sigma).clone()
            made[where] = clean.to(made.dtype)
            return made

        return known


def trained_frames(generator: Generator, num_frames: int) -> list[int]:
    """How many of `num_frames` a model can go on from; 0: none. An autoregressive one from any."""
    temporal, patch_t = generator.encoding.tokenizer.temporal, generator.encoding.patch[0]
    lens: Sequence[int] = generator.spec.prefix_lens
    if generator.encoding.discrete:
        lens = range(1 + (num_frames - 1) // temporal)
    return [1 + temporal * (n * patch_t - 1) if n else 0 for n in lens]


def read_given(config: GenerateConfig, generator: Generator, shape: VideoShape) -> Tensor | None:
    """What `image` or `video` says the video begins with, `uint8 [T, H, W, 3]` of its size.

    Pictures are scaled to cover the size and cut to its middle. A video is read at the frame rate
    that is generated.

    Raises `ConfigError` where the model has not learned to go on from so much, or from nothing.
    """
    path, name = (config.video, "video") if config.video else (config.image, "image")
    trained = trained_frames(generator, shape.num_frames)
    if path is None:
        if 0 not in trained:
            raise ConfigError(
                f"this model only goes on from given frames ({_listed(trained)}): give image=FILE "
                "or video=FILE"
            )
        return None
    possible = [n for n in trained if 0 < n < shape.num_frames]
    if trained == [0]:
        raise ConfigError(
            f"{name}={path}: this model was trained on text alone; a network that goes on from "
            "frames is trained with model.prefix=true and prefix.shares"
        )
    try:
        info = probe(path)
        if name == "video" and config.prefix_frames is None:
            length_s = info.duration_s or 1 / shape.fps
            there = max(1, int(Fraction(length_s * shape.fps).limit_denominator(1000)))
            num = max((n for n in possible if n <= there), default=None)
            if num is None:
                raise ConfigError(
                    f"{name}={path} has about {there} frames at {shape.fps:g} per second; this "
                    f"model goes on from {_listed(trained)}, of fewer than num_frames="
                    f"{shape.num_frames}"
                )
        else:
            num = 1 if name == "image" else config.prefix_frames
            assert num is not None
            if num not in possible:
                asked = f"image={path} is 1 frame" if name == "image" else f"prefix_frames={num}"
                raise ConfigError(
                    f"{asked}; this model goes on from {_listed(trained)}, of fewer than "
                    f"num_frames={shape.num_frames}"
                )
        times_s = [i / shape.fps for i in range(num)]
        size, crop = cover((info.width, info.height), (shape.width, shape.height))
        return torch.from_numpy(read_at(path, times_s, size=size, crop=crop))
    except MediaError as error:
        raise ConfigError(f"{name}={path} cannot be read: {error}") from None


def cover(
    size: tuple[int, int], wanted: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """To what `size` (width, height) is scaled so that it covers `wanted`, and the middle of that
    as (left, top, width, height)."""
    scale = max(Fraction(w, s) for w, s in zip(wanted, size, strict=True))
    width, height = (max(w, ceil(s * scale)) for s, w in zip(size, wanted, strict=True))
    return (width, height), ((width - wanted[0]) // 2, (height - wanted[1]) // 2, *wanted)


def _listed(frames: Sequence[int]) -> str:
    return " or ".join(str(n) for n in frames if n) + " frames"
