"""From a checkpoint to a network that can generate."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from models.encoding import Encoding, choose_device
from models.family import Network
from models.lora import load_adapter, merge_lora, merged
from models.objectives.loss import Denoiser, Objective
from models.spec import ModelSpec
from models.tokenizers.load import load_tokenizer
from parallel import checkpoint
from parallel.ema_snapshots import reconstruct


@dataclass(frozen=True)
class Generator:
    """A network with all that belongs to it, ready to denoise."""

    network: Network
    encoding: Encoding
    spec: ModelSpec
    step: int

    @classmethod
    def around(
        cls, network: Network, encoding: Encoding, spec: ModelSpec, step: int
    ) -> "Generator":
        return cls(network, encoding, spec, step)

    @property
    def denoiser(self) -> Denoiser:
        """Of a diffusion network."""
        return Denoiser(self.network, Objective(self.spec.objective).precondition)


def load_generator(
    path: Path,
    *,
    weights: str = "ema",
    ema_width: float | None = None,
    adapter: Path | None = None,
    device: str = "auto",
) -> Generator:
    """Reads a checkpoint, a folder of them, or a run folder.

    Args:
        weights: `ema`, the running average, or `model`, the last step's.
        ema_width: instead of both, the average of this width from what the run has stored.
        adapter: a folder with a low-rank adapter, which is added to the weights.
    Raises:
        DataError: naming what is missing, damaged, or of another shape.
    """
    folder = checkpoint.resolve(path)
    state = checkpoint.read_state(folder)
    spec = ModelSpec.from_json(state["spec"])
    where = choose_device(device)
    encoding = spec.encoding(load_tokenizer(folder / "tokenizer", where), where)
    network = spec.network(encoding)
    expected = dict(network.named_parameters())
    if ema_width is None:
        tensors = read_weights(folder, weights, spec, expected)
    else:
        tensors = reconstruct(folder.parent.parent, ema_width, state["step"])
        tensors = tensors if spec.lora is None else merged(tensors, spec.lora)
    with torch.no_grad():
        for name, parameter in expected.items():
            parameter.copy_(tensors[name])
    if adapter is not None:
        load_adapter(network, adapter)
        merge_lora(network)
    network.eval().requires_grad_(False)
    return Generator.around(network, encoding, spec, state["step"])


def read_weights(
    folder: Path, weights: str, spec: ModelSpec, expected: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """A checkpoint's weights `ema` or `model`, with the adapters of `spec` added to them.

    Raises `DataError` that lists what is missing, unknown or of another shape.
    """

    def plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors if spec.lora is None else merged(tensors, spec.lora)

    return checkpoint.read_tensors(folder, weights, expected, change=plain)
