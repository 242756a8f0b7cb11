"""Our causal 3D tokenizer: a Haar front, a fitted projection, and a causal convolutional decoder.

Encoding is linear. Blocks of 4x8x8 pixels go through the orthonormal Haar transform, then onto
the leading principal directions of the coefficients, then to unit variance over all. Decoding
inverts that and adds what a small causal convolutional network recovers from neighbouring blocks,
which no linear block transform can. `fit.py` makes both halves from footage.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from common.errors import ConfigError, DataError
from models.tokenizers import haar


@dataclass(kw_only=True)
class WaveletConfig:
    """Compression and size of the tokenizer."""

    temporal: int = 4
    spatial: int = 8
    channels: int = 16
    whitening: float = 0.25
    """1 gives every channel unit variance, 0 leaves their spread as the footage has it. Between
    the two, coarse structure weighs more than detail and is learned first."""
    decoder_width: int = 96
    decoder_blocks: int = 2

    def __post_init__(self) -> None:
        for name in ("temporal", "spatial"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise ConfigError(f"tokenizer.fit.{name} must be a power of two, got {value}")
        most = 3 * self.temporal * self.spatial**2
        if not 1 <= self.channels <= most:
            raise ConfigError(f"tokenizer.fit.channels must be 1 to {most}, got {self.channels}")
        if self.decoder_width < 1:
            raise ConfigError(
                f"tokenizer.fit.decoder_width must be at least 1, got {self.decoder_width}"
            )
        if self.decoder_blocks < 0:
            raise ConfigError(
                f"tokenizer.fit.decoder_blocks must not be negative, got {self.decoder_blocks}"
            )
        if not 0 <= self.whitening <= 1:
            raise ConfigError(f"tokenizer.fit.whitening must lie in 0 to 1, got {self.whitening}")


class CausalConv3d(nn.Module):
    """A convolution over (t, h, w) that sees this frame and the one before it, never a later one.

    Before the first frame stands the first frame itself.
    """

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels_in, channels_out, (2, 3, 3), padding=(0, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 0, 0, 0, 1, 0), mode="replicate"))


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = CausalConv3d(width, width)
        self.second = CausalConv3d(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.gelu(self.first(F.gelu(x))))


class Refiner(nn.Module):
    """Latents `[B, C, t, h, w]` to a correction of the Haar coefficients `[B, K, t, h, w]`."""

    def __init__(self, channels: int, width: int, blocks: int, coefficients: int) -> None:
        super().__init__()
        self.enter = CausalConv3d(channels, width)
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(blocks))
        self.leave = nn.Conv3d(width, coefficients, 1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.enter(z)
        for block in self.blocks:
            x = block(x)
        return self.leave(F.gelu(x))


class WaveletTokenizer(nn.Module):
    """See `models.tokenizers.base.VideoTokenizer` for the contract."""

    mean: Tensor
    basis: Tensor
    scale: Tensor
    matrix: Tensor

    def __init__(self, config: WaveletConfig) -> None:
        super().__init__()
        self.config = config
        self.temporal, self.spatial = config.temporal, config.spatial
        self.channels = config.channels
        k = 3 * config.temporal * config.spatial**2
        self.register_buffer("mean", torch.zeros(k))
        self.register_buffer("basis", torch.zeros(config.channels, k))
        self.register_buffer("scale", torch.ones(config.channels))
        matrix = haar.block_matrix(config.temporal, config.spatial)
        self.register_buffer("matrix", matrix, persistent=False)
        self.refiner = Refiner(config.channels, config.decoder_width, config.decoder_blocks, k)

    def coefficients(self, frames: Tensor) -> Tensor:
        """`uint8 [T, H, W, 3]` to Haar coefficients `[K, t, h, w]`."""
        return haar.forward(self._blocks(frames), self.matrix)

    def _blocks(self, frames: Tensor) -> Tensor:
        """`uint8 [T, H, W, 3]` to blocks of pixels in -1 .. 1, `float32 [t, h, w, 3, K/3]`."""
        num_frames, height, width, _ = frames.shape
        if (num_frames - 1) % self.temporal or height % self.spatial or width % self.spatial:
            raise ValueError(
                f"{num_frames} frames of {width}x{height} cannot be tokenized: frames must be 1 "
                f"plus a multiple of {self.temporal}, sides multiples of {self.spatial}"
            )
        blocks = haar.blocks(frames.to(self.mean.device), self.temporal, self.spatial)
        return blocks.float().div_(127.5).sub_(1)

    def project(self, coefficients: Tensor) -> Tensor:
        """Coefficients `[K, t, h, w]` to latents `[C, t, h, w]`."""
        centred = coefficients - self.mean[:, None, None, None]
        return torch.einsum("ck,kthw->cthw", self.basis / self.scale[:, None], centred)

    def unproject(self, latents: Tensor) -> Tensor:
        """Latents to coefficients, both linear and refined parts: the inverse of `project`."""
        linear = torch.einsum("ck,cthw->kthw", self.basis * self.scale[:, None], latents)
        return linear + self.mean[:, None, None, None] + self.refiner(latents[None])[0]

    @torch.no_grad()
    def encode(self, frames: Tensor) -> Tensor:
        """`uint8 [T, H, W, 3]` to `float32 [C, t, h, w]`."""
        # Transform and projection in one product with C columns, the transform alone has K.
        project = self.basis / self.scale[:, None]
        kernel = (project.unflatten(1, (3, -1)) @ self.matrix).flatten(1)
        latents = self._blocks(frames).flatten(-2) @ kernel.T - project @ self.mean
        return latents.permute(3, 0, 1, 2).contiguous()

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """`float32 [C, t, h, w]` to `uint8 [T, H, W, 3]`."""
        coefficients = self.unproject(latents.to(self.mean))
        video = haar.inverse(coefficients, self.temporal, self.spatial, self.matrix)
        pixels = ((video + 1) * 127.5).round().clamp(0, 255)
        return pixels.to(torch.uint8).permute(1, 2, 3, 0).contiguous()

    def equals(self, other: "WaveletTokenizer") -> bool:
        """Whether both give the same latents and frames, to the bit."""
        mine, theirs = self.state_dict(), other.state_dict()
        return self.config == other.config and all(
            torch.equal(tensor, theirs[name]) for name, tensor in mine.items()
        )

    def save(self, folder: Path) -> None:
        """Writes `config.json` and `model.safetensors` into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {"kind": "wavelet", **asdict(self.config)}
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        state = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_file(state, folder / "model.safetensors")

    @classmethod
    def load(cls, folder: Path) -> "WaveletTokenizer":
        """Reads what `save` wrote. Raises `DataError` naming the folder."""
        try:
            raw = json.loads((folder / "config.json").read_text())
            if not isinstance(raw, dict):
                raise TypeError("config.json holds no JSON object")
            if raw.pop("kind", None) != "wavelet":
                raise DataError(f"{folder} does not hold a wavelet tokenizer")
            tokenizer = cls(WaveletConfig(**raw))
            tokenizer.load_state_dict(load_file(folder / "model.safetensors"))
        except FileNotFoundError as error:
            raise DataError(f"no tokenizer in {folder}: {error.filename} is missing") from None
        except OSError as error:
            raise DataError(f"the tokenizer in {folder} cannot be read: {error}") from error
        except (ValueError, TypeError, RuntimeError, SafetensorError) as error:
            raise DataError(f"the tokenizer in {folder} is damaged: {error}") from error
        return tokenizer.eval().requires_grad_(False)
