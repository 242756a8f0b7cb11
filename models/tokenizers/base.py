"""What a video tokenizer is, whoever made it."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor


class VideoTokenizer(Protocol):
    """Frames to latents and back.

    Causal in time: T = 1 + k * temporal frames give 1 + k latent frames, the first from the first
    frame alone, so that an image is a video of one frame. Over the data the tokenizer was made for,
    latents have zero mean per channel and a variance of 1, on the mean over channels.
    """

    temporal: int
    """Frames per latent frame, after the first."""
    spatial: int
    """Pixels per latent along height and along width."""
    channels: int
    """Latent channels C."""

    @property
    def num_codes(self) -> int:
        """Codes that a place of the latents can have; 0 where they are continuous."""
        ...

    def encode(self, frames: Tensor) -> Tensor:
        """`uint8 [T, H, W, 3]` RGB to `float32 [C, t, h, w]`."""
        ...

    def decode(self, latents: Tensor) -> Tensor:
        """`float32 [C, t, h, w]` to `uint8 [T, H, W, 3]`."""
        ...

    def encode_stream(self, frames: Iterable[Tensor]) -> Iterator[Tensor]:
        """Frames `uint8 [n, H, W, 3]` as they come, any number at a time, to latents
        `float32 [C, k, h, w]`; end to end they are what `encode` gives of the whole."""
        ...

    def decode_stream(self, latents: Iterable[Tensor]) -> Iterator[Tensor]:
        """Latents `float32 [C, k, h, w]` as they come to frames `uint8 [n, H, W, 3]`."""
        ...

    def codes(self, latents: Tensor) -> Tensor:
        """Discrete latents `float32 [C, t, h, w]` to codes `int64 [t, h, w]`, below `num_codes`."""
        ...

    def from_codes(self, codes: Tensor) -> Tensor:
        """`int64 [t, h, w]` to `float32 [C, t, h, w]`: inverts `codes`."""
        ...

    def equals(self, other: "VideoTokenizer") -> bool:
        """Whether both give the same latents and frames, to the bit."""
        ...

    def save(self, folder: Path) -> None:
        """Writes `config.json` and what else `models.tokenizers.load` needs, into `folder`."""
        ...


def latent_shape(
    tokenizer: VideoTokenizer, num_frames: int, height: int, width: int
) -> tuple[int, int, int, int]:
    """`[C, t, h, w]` of a video's latents. Raises `ValueError` where it does not divide."""
    if (num_frames - 1) % tokenizer.temporal:
        raise ValueError(
            f"num_frames={num_frames} is not 1 plus a multiple of {tokenizer.temporal}"
        )
    if height % tokenizer.spatial or width % tokenizer.spatial:
        raise ValueError(f"size {width}x{height} is not a multiple of {tokenizer.spatial}")
    return (
        tokenizer.channels,
        1 + (num_frames - 1) // tokenizer.temporal,
        height // tokenizer.spatial,
        width // tokenizer.spatial,
    )


def psnr_db(a: Tensor, b: Tensor) -> float:
    """Peak signal-to-noise ratio of two uint8 videos of one shape, in dB; inf where equal."""
    error = (a.double() - b.double()).square().mean()
    return float(10 * (255.0**2 / error).log10()) if error > 0 else float("inf")


def mean_psnr_db(tokenizer: VideoTokenizer, videos: Sequence[Tensor]) -> float:
    """Mean reconstruction PSNR over videos `uint8 [T, H, W, 3]`."""
    values = [psnr_db(tokenizer.decode(tokenizer.encode(v)), v) for v in videos]
    return sum(values) / len(values)
