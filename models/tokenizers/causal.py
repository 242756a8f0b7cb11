"""Our causal 3D tokenizer: a Haar front, a fitted projection, and small networks on both sides.

Raw latents are a linear code plus a network's correction, and so is the video made from them:

    raw   = P (haar(video) - mean) + encoder(haar(video))
    video = haar^-1(P^-1 raw + mean + decoder(raw))

P is onto the principal directions of the footage and gives every channel unit variance; the
networks start at zero, so that training starts from the best linear block code. `fit.py` makes the
linear part in closed form and trains the rest.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from common.errors import ConfigError, DataError
from common.storage import write_atomic
from models.tokenizers import haar
from models.tokenizers.base import VideoTokenizer
from models.tokenizers.discrete import codes_of, num_codes, quantized, values_of
from models.tokenizers.layers import Attention, Block, ChannelNorm, Down, Stream, Up
from models.tokenizers.pieces import Tile, latent_pieces, pieces, tiles


@dataclass(kw_only=True)
class CausalConfig:
    """Compression and size of the tokenizer."""

    temporal: int = 4
    spatial: int = 8
    channels: int = 16
    haar: list[int] = field(default_factory=lambda: [4, 8])
    """Frames and pixels (along each side) of a block of the Haar front. What it leaves of
    `temporal` and `spatial` the networks do, a factor of 2 per step between two widths."""
    widths: list[int] = field(default_factory=lambda: [96])
    """Channels of the networks, from the Haar front's resolution to that of the latents."""
    encoder_blocks: int = 0
    """Residual blocks at each width; with 0 the encoder is linear, one matrix product."""
    decoder_blocks: int = 2
    attention_blocks: int = 0
    """Of the networks, at the latents' resolution; half of the width must divide into heads of 32
    or fewer features."""
    attention_window: int = 8
    """Latents along the sides of a window of spatial attention."""
    attention_frames: int = 8
    """Latent frames that temporal attention sees, this one included."""
    levels: list[int] = field(default_factory=list)
    """Makes latents discrete: the values that each channel can have, such as [8,8,8,5,5,5] for six
    channels and 64,000 codes. Empty: continuous. See `models.tokenizers.discrete`."""
    whitening: float = 0.25
    """1 gives every channel unit variance, 0 leaves their spread as the footage has it. Between
    the two, coarse structure weighs more than detail and is learned first."""

    def __post_init__(self) -> None:
        if len(self.haar) != 2:
            raise ConfigError(f"tokenizer haar must be [frames, pixels], got {self.haar}")
        for name, value in (
            ("temporal", self.temporal),
            ("spatial", self.spatial),
            ("haar", self.haar[0]),
            ("haar", self.haar[1]),
        ):
            if value < 1 or value & (value - 1):
                raise ConfigError(f"tokenizer {name} must be a power of two, got {value}")
        if self.haar[0] > self.temporal or self.haar[1] > self.spatial:
            raise ConfigError(
                f"tokenizer haar={self.haar} must not exceed temporal={self.temporal} and "
                f"spatial={self.spatial}"
            )
        most = 3 * self.temporal * self.spatial**2
        if not 1 <= self.channels <= most:
            raise ConfigError(f"tokenizer channels must be 1 to {most}, got {self.channels}")
        steps = max(self.time_steps, self.space_steps)
        if len(self.widths) != steps + 1 or min(self.widths) < 1:
            raise ConfigError(
                f"tokenizer widths must be {steps + 1} positive numbers, got {self.widths}: from "
                f"haar={self.haar} to {self.temporal}x{self.spatial} are {steps} steps of 2"
            )
        for name in ("encoder_blocks", "decoder_blocks", "attention_blocks"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"tokenizer {name} must not be negative, got {getattr(self, name)}"
                )
        for name in ("attention_window", "attention_frames"):
            if getattr(self, name) < 1:
                raise ConfigError(f"tokenizer {name} must be at least 1, got {getattr(self, name)}")
        if self.attention_blocks and self.widths[-1] % self.heads:
            raise ConfigError(
                f"tokenizer widths={self.widths}: attention needs a last width that is a multiple "
                f"of 32, or below it"
            )
        if steps and not self.encoder_blocks:
            raise ConfigError(
                f"tokenizer haar={self.haar} is smaller than a latent's block, which needs "
                "encoder_blocks of at least 1"
            )
        if self.levels and (len(self.levels) != self.channels or min(self.levels) < 2):
            raise ConfigError(
                f"tokenizer levels={self.levels} must give each of channels={self.channels} a "
                "number of values, at least 2"
            )
        if num_codes(self.levels) > 1 << 24:
            raise ConfigError(
                f"tokenizer levels={self.levels} make {num_codes(self.levels)} codes, more than "
                "2^24: a network could not tell them apart"
            )
        if not 0 <= self.whitening <= 1:
            raise ConfigError(f"tokenizer whitening must lie in 0 to 1, got {self.whitening}")

    @property
    def time_steps(self) -> int:
        return (self.temporal // self.haar[0]).bit_length() - 1

    @property
    def space_steps(self) -> int:
        return (self.spatial // self.haar[1]).bit_length() - 1

    @property
    def heads(self) -> int:
        return max(1, self.widths[-1] // 32)

    @property
    def steps(self) -> list[tuple[bool, bool]]:
        """Of each step from one width to the next, fine to coarse: halves (time, space)?"""
        n = len(self.widths) - 1
        return [(i >= n - self.time_steps, i < self.space_steps) for i in range(n)]

    @property
    def halo(self) -> int:
        """How far, in latents, a place of the latents or of the video depends on its frame."""
        reach, scale = 0.0, 1.0
        for i in range(len(self.widths)):
            blocks = max(self.encoder_blocks, self.decoder_blocks)
            # A block has one 3x3 convolution, and a step another, on its coarse side at most.
            reach += scale * blocks
            scale *= 2.0 if i < self.space_steps else 1.0
            reach += scale * (i < len(self.widths) - 1)
        whole = -int(-reach // 2**self.space_steps)
        n = self.grain
        return -(-whole // n) * n

    @property
    def grain(self) -> int:
        """Tiles begin at multiples of this many latents, so that windows of attention lie alike."""
        return self.attention_window if self.attention_blocks else 1


class Encoder(nn.Module):
    """Coefficients of the front `[B, Kh, th, hh, wh]` to a correction and a log-variance,
    `[B, 2C, t, h, w]`."""

    def __init__(self, config: CausalConfig, coefficients: int) -> None:
        super().__init__()
        widths = config.widths
        self.enter = nn.Conv3d(coefficients, widths[0], 1)
        body: list[nn.Module] = []
        for i, width in enumerate(widths):
            body += [Block(width) for _ in range(config.encoder_blocks)]
            if i + 1 < len(widths):
                time, space = config.steps[i]
                body.append(Down(width, widths[i + 1], time=time, space=space))
        self.body = nn.ModuleList([*body, *_attention(config)])
        self.norm = ChannelNorm(widths[-1])
        self.leave = nn.Conv3d(widths[-1], 2 * config.channels, 1)

    def forward(self, x: Tensor, stream: Stream) -> Tensor:
        x = self.enter(x)
        for layer in self.body:
            x = layer(x, stream)
        return self.leave(F.silu(self.norm(x)))


class Decoder(nn.Module):
    """Raw latents `[B, C, t, h, w]` to a correction of the Haar coefficients of the front."""

    def __init__(self, config: CausalConfig, coefficients: int) -> None:
        super().__init__()
        widths = config.widths
        self.enter = nn.Conv3d(config.channels, widths[-1], 1)
        body: list[nn.Module] = [*_attention(config)]
        for i in range(len(widths) - 1, -1, -1):
            body += [Block(widths[i]) for _ in range(config.decoder_blocks)]
            if i:
                time, space = config.steps[i - 1]
                body.append(Up(widths[i], widths[i - 1], time=time, space=space))
        self.body = nn.ModuleList(body)
        self.norm = ChannelNorm(widths[0])
        self.leave = nn.Conv3d(widths[0], coefficients, 1)

    def forward(self, z: Tensor, stream: Stream) -> Tensor:
        x = self.enter(z)
        for layer in self.body:
            x = layer(x, stream)
        return self.leave(F.silu(self.norm(x)))


def _attention(config: CausalConfig) -> list[nn.Module]:
    """At the inner end of a network, where the fewest places are."""
    return [
        Attention(
            config.widths[-1],
            config.heads,
            spatial=config.attention_window,
            temporal=config.attention_frames,
        )
        for _ in range(config.attention_blocks)
    ]


class CausalTokenizer(nn.Module):
    """See `models.tokenizers.base.VideoTokenizer` for the contract.

    Videos of any length and size are worked through in pieces of `piece` latent frames and tiles of
    `tile` latents along a side. Layers remember what they need of the piece before, and tiles are
    computed with all that they depend on around them: the result is that of one piece.
    """

    mean: Tensor
    basis: Tensor
    deviation: Tensor
    inputs: Tensor
    shift: Tensor
    scale: Tensor
    matrix: Tensor
    front: Tensor

    def __init__(self, config: CausalConfig, *, piece: int = 4, tile: int = 64) -> None:
        super().__init__()
        self.config = config
        self.temporal, self.spatial = config.temporal, config.spatial
        self.channels = config.channels
        self._block = config.haar[0], config.haar[1]
        self.piece, self.tile = piece, tile
        k = 3 * config.temporal * config.spatial**2
        front = 3 * config.haar[0] * config.haar[1] ** 2
        self.register_buffer("mean", torch.zeros(k))
        self.register_buffer("basis", torch.zeros(config.channels, k))
        self.register_buffer("deviation", torch.ones(config.channels))
        self.register_buffer("inputs", torch.ones(front))
        self.register_buffer("shift", torch.zeros(config.channels))
        self.register_buffer("scale", torch.ones(config.channels))
        matrix = haar.block_matrix(config.temporal, config.spatial)
        self.register_buffer("matrix", matrix, persistent=False)
        self.register_buffer("front", haar.block_matrix(*self._block), persistent=False)
        self.encoder = Encoder(config, front) if config.encoder_blocks else None
        self.decoder = Decoder(config, front)

    # Maths of one piece, batched and differentiable

    def coefficients(self, video: Tensor, *, first: bool = True) -> Tensor:
        """Pixels in -1 .. 1, `[B, 3, T, H, W]`, to Haar coefficients `[B, K, t, h, w]`."""
        return haar.forward(video, self.temporal, self.spatial, self.matrix, first=first)

    def front_coefficients(self, video: Tensor, *, first: bool = True) -> Tensor:
        """The same in the blocks of the front, `[B, Kh, th, hh, wh]`."""
        return haar.forward(video, *self._block, self.front, first=first)

    def posterior(self, video: Tensor, stream: Stream, *, first: bool) -> tuple[Tensor, Tensor]:
        """Pixels to raw latents and their log-variance, each `[B, C, t, h, w]`."""
        whole = self.coefficients(video, first=first)
        linear = _matmul(
            self.basis / self.deviation[:, None], whole - self.mean[:, None, None, None]
        )
        if self.encoder is None:
            return linear, torch.full_like(linear, _LOG_VARIANCE)
        if self.front.shape != self.matrix.shape:
            whole = self.front_coefficients(video, first=first)
        correction, spread = self.encoder(whole / self.inputs[:, None, None, None], stream).chunk(
            2, dim=1
        )
        return linear + correction, spread + _LOG_VARIANCE

    def reconstruct(self, raw: Tensor, stream: Stream, *, first: bool) -> Tensor:
        """Raw latents `[B, C, t, h, w]` to pixels `[B, 3, T, H, W]`."""
        linear = _matmul((self.basis * self.deviation[:, None]).T, raw)
        linear = linear + self.mean[:, None, None, None]
        correction = self.decoder(raw, stream)
        if self.front.shape == self.matrix.shape:
            linear, correction = linear + correction, None
        video = haar.inverse(linear, self.temporal, self.spatial, self.matrix, first=first)
        if correction is not None:
            video = video + haar.inverse(correction, *self._block, self.front, first=first)
        return video

    def quantized(self, raw: Tensor) -> Tensor:
        """Raw latents as they are decoded: on the grid where they are discrete."""
        return quantized(raw, self.config.levels) if self.config.levels else raw

    # Discrete latents

    @property
    def num_codes(self) -> int:
        """Codes that a place of the latents can have; 0 where they are continuous."""
        return num_codes(self.config.levels) if self.config.levels else 0

    def codes(self, latents: Tensor) -> Tensor:
        """`float32 [C, t, h, w]` to `int64 [t, h, w]`."""
        raw = latents / self.scale[:, None, None, None] + self.shift[:, None, None, None]
        return codes_of(raw, self.config.levels)

    def from_codes(self, codes: Tensor) -> Tensor:
        """`int64 [t, h, w]` to `float32 [C, t, h, w]`: inverts `codes`."""
        raw = values_of(codes, self.config.levels, self.shift.dtype)
        return (raw - self.shift[:, None, None, None]) * self.scale[:, None, None, None]

    # Whole videos and streams of them

    def encode(self, frames: Tensor) -> Tensor:
        """`uint8 [T, H, W, 3]` to `float32 [C, t, h, w]`."""
        return torch.cat(list(self.encode_stream([frames])), dim=1)

    def decode(self, latents: Tensor) -> Tensor:
        """`float32 [C, t, h, w]` to `uint8 [T, H, W, 3]`."""
        return torch.cat(list(self.decode_stream([latents])))

    @torch.no_grad()
    def encode_stream(self, frames: Iterable[Tensor]) -> Iterator[Tensor]:
        """Frames `uint8 [n, H, W, 3]` as they come, any number at a time, to latents
        `float32 [C, k, h, w]`; memory does not grow with the length of the video.

        Raises `ValueError` where frames are not 1 plus a multiple of `temporal` in all, or sides
        not multiples of `spatial`.
        """
        streams: dict[Tile, Stream] = {}
        for i, part in enumerate(pieces(frames, self.temporal, self.spatial, self.piece)):
            rows, columns = part.shape[1] // self.spatial, part.shape[2] // self.spatial
            out = self.mean.new_empty(self.channels, self._latents(part, i), rows, columns)
            for tile in tiles(rows, columns, self.tile, self.config.halo, self.config.grain):
                stream = streams.setdefault(tile, Stream(keeps=True))
                pixels = to_pixels(part[tile.seen(self.spatial)].to(self.mean.device))
                raw, _ = self.posterior(pixels[None], stream, first=i == 0)
                raw = self.quantized(raw)
                out[:, *tile.at()] = raw[0][:, *tile.inside()]
            yield (out - self.shift[:, None, None, None]) * self.scale[:, None, None, None]

    @torch.no_grad()
    def decode_stream(self, latents: Iterable[Tensor]) -> Iterator[Tensor]:
        """Latents `float32 [C, k, h, w]` as they come to frames `uint8 [n, H, W, 3]`."""
        streams: dict[Tile, Stream] = {}
        for i, part in enumerate(latent_pieces(latents, self.piece)):
            raw = part.to(self.mean) / self.scale[:, None, None, None]
            raw = raw + self.shift[:, None, None, None]
            _, num, rows, columns = raw.shape
            s = self.spatial
            num_frames = self.temporal * num - (self.temporal - 1 if i == 0 else 0)
            out = raw.new_empty(num_frames, rows * s, columns * s, 3, dtype=torch.uint8)
            for tile in tiles(rows, columns, self.tile, self.config.halo, self.config.grain):
                stream = streams.setdefault(tile, Stream(keeps=True))
                seen = raw[:, *tile.seen()]
                video = self.reconstruct(seen[None], stream, first=i == 0)[0]
                out[tile.at(s)] = to_bytes(video[:, *tile.inside(s)])
            yield out

    def _latents(self, part: Tensor, i: int) -> int:
        return (part.shape[0] + (self.temporal - 1 if i == 0 else 0)) // self.temporal

    # On the disk

    def equals(self, other: VideoTokenizer) -> bool:
        """Whether both give the same latents and frames, to the bit."""
        if not isinstance(other, CausalTokenizer):
            return False
        mine, theirs = self.state_dict(), other.state_dict()
        return self.config == other.config and all(
            torch.equal(tensor, theirs[name]) for name, tensor in mine.items()
        )

    def save(self, folder: Path) -> None:
        """Writes `config.json` and `model.safetensors` into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {"kind": KIND, **asdict(self.config)}
        state = {name: tensor.cpu().contiguous() for name, tensor in self.state_dict().items()}
        write_atomic(folder / "model.safetensors", save(state))
        # Last, since what has one is taken for whole.
        write_atomic(folder / "config.json", (json.dumps(config, indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: Path) -> "CausalTokenizer":
        """Reads what `save` wrote. Raises `DataError` naming the folder."""
        try:
            raw = json.loads((folder / "config.json").read_text())
            if not isinstance(raw, dict):
                raise TypeError("config.json holds no JSON object")
            if raw.pop("kind", None) != KIND:
                raise DataError(f"{folder} does not hold a tokenizer of kind '{KIND}'")
            tokenizer = cls(CausalConfig(**raw))
            tokenizer.load_state_dict(load_file(folder / "model.safetensors"))
        except FileNotFoundError as error:
            raise DataError(f"no tokenizer in {folder}: {error.filename} is missing") from None
        except OSError as error:
            raise DataError(f"the tokenizer in {folder} cannot be read: {error}") from error
        except (ValueError, TypeError, RuntimeError, SafetensorError, ConfigError) as error:
            raise DataError(f"the tokenizer in {folder} is damaged: {error}") from error
        return tokenizer.eval().requires_grad_(False)


KIND = "causal"
_LOG_VARIANCE = -8.0
"""Where the posterior starts: raw latents have unit variance, their noise a 55th of it."""


def to_pixels(frames: Tensor) -> Tensor:
    """`uint8 [..., T, H, W, 3]` to -1 .. 1, `float32 [..., 3, T, H, W]`."""
    return frames.movedim(-1, -4).float().div_(127.5).sub_(1)


def to_bytes(pixels: Tensor) -> Tensor:
    """The inverse of `to_pixels`, rounded."""
    return ((pixels + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).movedim(-4, -1)


def _matmul(matrix: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("ck,bkthw->bcthw", matrix, x)
