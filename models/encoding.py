"""From what people look at and read to what a network works on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.errors import ConfigError
from models.actions import pack_actions
from models.autoregressive import before_each
from models.pack import Actions, Grid, PackLayout, Prefix
from models.patch import Patch, grid_of, patchify, unpatchify
from models.text.base import TextEncoder
from models.tokenizers.base import VideoTokenizer


@dataclass(frozen=True)
class Encoding:
    """The tokenizer, the text encoder and the patch that a network was made for.

    Latents have unit variance; the network's tokens have standard deviation `sigma_data`.
    """

    tokenizer: VideoTokenizer
    text: TextEncoder
    patch: Patch
    sigma_data: float
    device: torch.device
    discrete: bool = False
    """Whether a token is a code, and `tokens` and `frames` work on codes."""

    @property
    def token_dim(self) -> int:
        """Features of a token; of a discrete one, the codes it can be."""
        if self.discrete:
            return self.tokenizer.num_codes
        pt, ph, pw = self.patch
        return self.tokenizer.channels * pt * ph * pw

    def tokens(self, frames: Sequence[Tensor]) -> Tensor:
        """Videos `uint8 [T, H, W, 3]` to one pack of tokens `float32 [N, p]`; of codes, the one
        before each and it itself, `int64 [N, 2]`."""
        with self._full_precision():
            latents = [self.tokenizer.encode(video.to(self.device)) for video in frames]
            return self.of_latents(latents)

    def of_latents(self, latents: Sequence[Tensor]) -> Tensor:
        """Latents `float32 [C, t, h, w]` of the tokenizer to one pack of tokens, as `tokens`."""
        with self._full_precision():
            latents = [latent.to(self.device) for latent in latents]
            if self.discrete:
                codes = [self.tokenizer.codes(latent) for latent in latents]
                return before_each(codes, start=self.tokenizer.num_codes)
            return patchify(latents, self.patch) * self.sigma_data

    def frames(self, tokens: Tensor, layout: PackLayout) -> list[Tensor]:
        """Tokens to videos `uint8 [T, H, W, 3]` on the CPU: the inverse of `tokens`."""
        latents = unpatchify(tokens / self.sigma_data, layout.grids, self.patch)
        return [self.frames_of(latent) for latent in latents]

    def frames_of(self, latents: Tensor) -> Tensor:
        """One video's latents `[C, t, h, w]` to `uint8 [T, H, W, 3]` on the CPU."""
        with self._full_precision():
            return self.tokenizer.decode(latents).cpu()

    def latents_of(self, codes: Tensor, grids: Sequence[Grid]) -> list[Tensor]:
        """Codes `int64 [B, s]` of samples of one size to their latents `[C, t, h, w]`."""
        return [self.tokenizer.from_codes(c.view(g)) for c, g in zip(codes, grids, strict=True)]

    def _full_precision(self) -> torch.autocast:
        """What is learned is the same, wherever this is called from."""
        return torch.autocast(self.device.type, enabled=False)

    def texts(self, captions: Sequence[str]) -> tuple[Tensor, list[int]]:
        """Captions to `float32 [L, d]` and the tokens of each."""
        text, lens = self.text.encode(captions)
        return text.to(self.device), lens

    def actions(self, actions: Sequence[Tensor | None], patches: Sequence[int]) -> Actions | None:
        """Actions of each sample's frames `float32 [T, a]`, or none, as a layout has them."""
        made = pack_actions(actions, patches, self.tokenizer.temporal * self.patch[0])
        return made and Actions(made.values.to(self.device), made.given)

    def layout(
        self,
        latent_shapes: Sequence[Sequence[int]],
        lens_text: Sequence[int],
        fps: Tensor,
        prefix: Prefix | None = None,
        actions: Actions | None = None,
    ) -> PackLayout:
        """The geometry of a pack of latents `[C, t, h, w]`."""
        grids = [grid_of(shape, self.patch) for shape in latent_shapes]
        return PackLayout.build(grids, lens_text, fps.to(self.device), prefix, actions)


def choose_device(name: str) -> torch.device:
    """`cpu`, `cuda` or `cuda:N`; `auto` takes a GPU where there is one.

    Raises `ConfigError` for any other, and for one that is not there.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name):
        raise ConfigError(f"device={name} is not known; choose auto, cpu, cuda or cuda:N")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device={name} cannot be used here: {str(error).splitlines()[0]}; try device=auto"
        ) from None
    return device
