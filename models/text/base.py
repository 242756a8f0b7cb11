"""What a text encoder is, whoever made it."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class TextEncoder(Protocol):
    """Captions to token embeddings, ragged: no padding, so none can be attended."""

    dim: int
    """Size d of a token's embedding."""

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, list[int]]:
        """Embeddings of all captions end to end, `float32 [L, d]`, and the tokens of each.

        An empty caption has no tokens; a network puts its null token there.
        """
        ...
