"""From a checkpoint to a network that can generate."""

from dataclasses import dataclass
from pathlib import Path

import torch

from models.encoding import Encoding, choose_device
from models.family import Network
from models.objectives.loss import Denoiser, Objective
from models.spec import ModelSpec
from models.tokenizers.load import load_tokenizer
from parallel import checkpoint
from parallel.ema_snapshots import reconstruct


@dataclass(frozen=True)
class Generator:
    """A network with all that belongs to it, ready to denoise."""

    network: Network
    denoiser: Denoiser
    encoding: Encoding
    spec: ModelSpec
    step: int

    @classmethod
    def around(
        cls, network: Network, encoding: Encoding, spec: ModelSpec, step: int
    ) -> "Generator":
        denoiser = Denoiser(network, Objective(spec.objective).precondition)
        return cls(network, denoiser, encoding, spec, step)


def load_generator(
    path: Path, *, weights: str = "ema", ema_width: float | None = None, device: str = "auto"
) -> Generator:
    """Reads a checkpoint, a folder of them, or a run folder.

    Args:
        weights: `ema`, the running average, or `model`, the last step's.
        ema_width: instead of both, the average of this width from what the run has stored.
    Raises:
        DataError: naming what is missing, damaged, or of another shape.
    """
    folder = checkpoint.resolve(path)
    state = checkpoint.read_state(folder)
    spec = ModelSpec.from_json(state["spec"])
    where = choose_device(device)
    encoding = spec.encoding(load_tokenizer(folder / "tokenizer", where), where)
    network = spec.network(encoding)
    if ema_width is None:
        tensors = checkpoint.read_tensors(folder, weights, dict(network.named_parameters()))
    else:
        tensors = reconstruct(folder.parent.parent, ema_width, state["step"])
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(tensors[name])
    network.eval().requires_grad_(False)
    return Generator.around(network, encoding, spec, state["step"])
