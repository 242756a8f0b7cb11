"""What a network is told besides its tokens: noise level, frame rate, and text or a class."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.layers import Linears, RMSNorm
from models.pack import PackLayout
from models.sinusoid import sinusoid

NullText = Literal["learned", "zero"]

SCALAR_FEATURES = 256
"""Sinusoidal features of a scalar (Peebles and Xie 2023, their `frequency_embedding_size`)."""


class SampleConditioning(nn.Module):
    """Noise level, frame rate and the mean of the text to the vector that AdaLN reads.

    The mean of the text tokens says at once what a video is about; what is where comes through
    cross-attention (Esser et al. 2024, section 4, with its pooled text). For AdaLN of low rank
    there is also the vector that all its sub-blocks share.

    Args:
        dim_about: features of what else a sample is described by, such as its mean text.
        shared: whether the vector for AdaLN of low rank is made.
    """

    def __init__(
        self, hidden_size: int, dim_about: int, linears: Linears, *, shared: bool = False
    ) -> None:
        super().__init__()
        self.noise = linears.replicated(SCALAR_FEATURES, hidden_size, bias=True)
        self.fps = linears.replicated(SCALAR_FEATURES, hidden_size, bias=True)
        self.down = linears.replicated(hidden_size, hidden_size, bias=True)
        self.about = linears.replicated(dim_about, hidden_size, bias=True)
        self.norm = RMSNorm(hidden_size)
        self.shared = (
            linears.replicated(hidden_size, 3 * hidden_size, bias=False) if shared else None
        )

    def forward(self, c_noise: Tensor, fps: Tensor, about: Tensor) -> tuple[Tensor, Tensor | None]:
        """`c_noise [n]`, `fps [n]`, `about [n, dim_about]` to `[n, h]`, and `[n, 3h]` if shared."""
        # c_noise spans a few units; the sinusoid resolves it once scaled up.
        noise = sinusoid(c_noise * 1000.0, SCALAR_FEATURES).to(about.dtype)
        rate = sinusoid(fps, SCALAR_FEATURES).to(about.dtype)
        scalars = self.down(F.silu(self.noise(noise) + self.fps(rate)))
        condition = self.norm(scalars + self.about(about))
        return condition, None if self.shared is None else self.shared(F.silu(condition))


class TextConditioning(nn.Module):
    """Norms text embeddings, and puts one null token where a sample has no text.

    `[L, d]` with `layout.lens_text` to `[L', dim]` with `layout.cross_attention.lens_k`. Prompts
    lie end to end without padding, so no padding can be attended.

    Args:
        dim: features to project to; None leaves the embeddings at their own `text_dim`.
        null: whether the null token is learned, or zero.
    """

    null: Tensor

    def __init__(
        self, text_dim: int, dim: int | None, linears: Linears, *, null: NullText = "learned"
    ) -> None:
        super().__init__()
        self.dim = text_dim if dim is None else dim
        self.project = (
            nn.Identity() if dim is None else linears.replicated(text_dim, dim, bias=True)
        )
        self.norm = RMSNorm(self.dim)
        if null == "learned":
            self.null = nn.Parameter(torch.zeros(1, self.dim))
        else:
            self.register_buffer("null", torch.zeros(1, self.dim), persistent=False)

    def forward(self, text: Tensor, layout: PackLayout) -> Tensor:
        return with_null(self.norm(self.project(text)), self.null, layout)


def with_null(text: Tensor, null: Tensor, layout: PackLayout) -> Tensor:
    """Puts `null [1, d]` where a sample of the packed `text [L, d]` has no token.

    Raises `ValueError` for text of another length than the layout's.
    """
    if text.shape[0] != sum(layout.lens_text):
        raise ValueError(
            f"text holds {text.shape[0]} tokens, the layout says {sum(layout.lens_text)}"
        )
    if all(layout.lens_text):
        return text
    parts = text.split(list(layout.lens_text))
    return torch.cat([part if len(part) else null.to(text.dtype) for part in parts])


class PrefixConditioning(nn.Module):
    """Tells tokens whether they are given, and how noisy: a mask channel beside the patches.

    Two features of a token, `mask` and `mask * t` with t = sigma / (1 + sigma) of the noise on
    what is given, through one linear; what they add starts at zero.
    """

    def __init__(self, hidden_size: int, linears: Linears) -> None:
        super().__init__()
        self.mask = linears.replicated(2, hidden_size, bias=False)

    def forward(self, x: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, h]` with what the tokens are told."""
        if layout.prefix is None:
            return x
        sigma = layout.prefix.sigma.to(x.dtype)
        mask = layout.in_prefix.to(x.dtype)
        return x + self.mask(torch.stack([mask, mask * layout.spread(sigma / (1 + sigma))], -1))


class ActionConditioning(nn.Module):
    """Adds to a frame's tokens what is done in it: an MLP of its action, or the null action.

    What is added starts at zero.

    Args:
        null: whether what stands for no action is learned, or zero.
    """

    null: Tensor

    def __init__(
        self, dim: int, hidden_size: int, linears: Linears, *, null: NullText = "learned"
    ) -> None:
        super().__init__()
        self.enter = linears.replicated(dim, hidden_size, bias=True)
        self.leave = linears.replicated(hidden_size, hidden_size, bias=True)
        if null == "learned":
            self.null = nn.Parameter(torch.zeros(1, hidden_size))
        else:
            self.register_buffer("null", torch.zeros(1, hidden_size), persistent=False)

    def forward(self, x: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, h]` with what the tokens are told."""
        actions = layout.actions
        if actions is None:
            return x + self.null.to(x.dtype)
        rows = self.leave(F.silu(self.enter(actions.values.to(x.dtype))))
        lens = torch.tensor([t for t, _, _ in layout.grids], device=x.device)
        given = torch.tensor(actions.given, device=x.device).repeat_interleave(lens)
        rows = torch.where(given[:, None], rows, self.null.to(rows.dtype))
        return x + rows.index_select(0, layout.frame)


class ClassConditioning(nn.Module):
    """Class labels `int64 [n]` to `[n, h]`; label `num_classes` means no class (for guidance)."""

    def __init__(self, num_classes: int, hidden_size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(num_classes + 1, hidden_size))

    def forward(self, labels: Tensor) -> Tensor:
        return self.table[labels]
