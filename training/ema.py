"""Exponential moving average of the weights."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


class EMA:
    """Keeps `shadow = d * shadow + (1 - d) * weight` in fp32.

    The decay is warmed up as min(decay, (1 + step) / (10 + step)), so that a short run is not
    held back by its random start.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], decay: float) -> None:
        self.decay = decay
        self.shadow = {name: p.detach().float().clone() for name, p in parameters}

    @torch.no_grad()
    def update(self, parameters: Mapping[str, nn.Parameter], step: int) -> None:
        """Called after optimizer step number `step`, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, parameter in parameters.items():
            self.shadow[name].lerp_(parameter.detach().float(), 1 - decay)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, shadow in self.shadow.items():
            shadow.copy_(tensors[name])

    def copy_to(self, model: nn.Module) -> None:
        """Puts the averaged weights into `model`."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self.shadow[name])
