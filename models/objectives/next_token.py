"""The objective of autoregressive networks: to tell each token from those before it."""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from models.objectives.loss import Keys
from models.pack import PackLayout


@dataclass(frozen=True)
class NextToken:
    """Cross-entropy, in nats a token. The same interface as `models.objectives.loss.Objective`;
    `clean int64 [N, 2]` is the token before each, and it itself."""

    @property
    def measure(self) -> str:
        """What a held-out error is."""
        return "cross-entropy"

    def draws(self, keys: Keys, layout: PackLayout, width: int) -> tuple[Tensor, ...]:
        """Nothing is random."""
        return ()

    def token_losses(self, network: Any, clean: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """What each token adds to the loss, `[N]`."""
        logits = network(clean[:, 0], text, layout)
        return F.cross_entropy(logits.float(), clean[:, 1], reduction="none")

    def levels(self, sigmas: list[float]) -> list[float]:
        """There are no noise levels: one error for all."""
        return [0.0]

    def held_out(
        self,
        network: Any,
        clean: Tensor,
        text: Tensor,
        layout: PackLayout,
        level: float,
        keys: Keys,
    ) -> Tensor:
        """Errors `[N]` of held-out tokens."""
        return self.token_losses(network, clean, text, layout)
