"""What a network is told besides its tokens: noise level, frame rate, text."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.layers import Linears, RMSNorm
from models.pack import PackLayout
from models.sinusoid import sinusoid


class ScalarEmbedder(nn.Module):
    """Sinusoid, linear, SiLU, linear: `[n]` to `[n, hidden_size]`."""

    def __init__(self, hidden_size: int, linears: Linears, *, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.hidden_size = hidden_size
        self.up = linears.replicated(hidden_size, hidden_size, bias=True)
        self.down = linears.replicated(hidden_size, hidden_size, bias=True)

    def forward(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        features = sinusoid(value * self.scale, self.hidden_size).to(dtype)
        return self.down(F.silu(self.up(features)))


class SampleConditioning(nn.Module):
    """Noise level, frame rate and mean text of each sample to the vector that AdaLN reads.

    The mean of the text tokens says at once what a video is about; what is where comes through
    cross-attention (Esser et al. 2024, section 4, with its pooled text).
    """

    def __init__(self, hidden_size: int, linears: Linears) -> None:
        super().__init__()
        # c_noise = ln(sigma)/4 spans about 3 units; the sinusoid resolves it once scaled up.
        self.noise = ScalarEmbedder(hidden_size, linears, scale=1000.0)
        self.fps = ScalarEmbedder(hidden_size, linears)
        self.pooled = linears.replicated(hidden_size, hidden_size, bias=True)
        self.norm = RMSNorm(hidden_size)

    def forward(self, c_noise: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`c_noise [n]`, text tokens `[L', h]` of `TextConditioning`, to `[n, h]`."""
        scalars = self.noise(c_noise, text.dtype) + self.fps(layout.fps, text.dtype)
        return self.norm(scalars + self.pooled(layout.text_mean(text)))


class TextConditioning(nn.Module):
    """Projects text embeddings, and puts one learned null token where a sample has no text.

    `[L, d]` with `layout.lens_text` to `[L', h]` with `layout.cross_attention.lens_k`. Prompts lie
    end to end without padding, so no padding can be attended.
    """

    def __init__(self, text_dim: int, hidden_size: int, linears: Linears) -> None:
        super().__init__()
        self.project = linears.replicated(text_dim, hidden_size, bias=True)
        self.norm = RMSNorm(hidden_size)
        self.null = nn.Parameter(torch.zeros(1, hidden_size))

    def forward(self, text: Tensor, layout: PackLayout) -> Tensor:
        if text.shape[0] != sum(layout.lens_text):
            raise ValueError(
                f"text holds {text.shape[0]} tokens, the layout says {sum(layout.lens_text)}"
            )
        tokens = self.norm(self.project(text))
        if all(layout.lens_text):
            return tokens
        parts = tokens.split(list(layout.lens_text))
        return torch.cat([part if len(part) else self.null.to(tokens.dtype) for part in parts])
