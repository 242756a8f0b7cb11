"""Moving averages of the weights."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from models.power_ema import decay, gamma_of


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


class PowerEMA:
    """Averages of several widths, from which those of other widths can be made afterwards.

    See `models.power_ema`; in fp32.
    """

    def __init__(
        self, parameters: Iterable[tuple[str, nn.Parameter]], widths: Sequence[float]
    ) -> None:
        start = {name: p.detach().float() for name, p in parameters}
        self.gammas = {width: gamma_of(width) for width in widths}
        self.tracks = {width: {n: t.clone() for n, t in start.items()} for width in widths}

    @torch.no_grad()
    def update(self, parameters: Mapping[str, nn.Parameter], step: int) -> None:
        """Called after optimizer step number `step`, counted from 1."""
        for width, track in self.tracks.items():
            weight = 1 - decay(self.gammas[width], step)
            for name, parameter in parameters.items():
                track[name].lerp_(parameter.detach().float(), weight)

    def tensors(self) -> dict[str, Tensor]:
        """All of them under one name each, for a checkpoint."""
        return {f"{w:g}/{n}": t for w, track in self.tracks.items() for n, t in track.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])
