"""Networks of other projects in our own names: `config.json` and `model.safetensors`.

`config.json` holds the `kind` and shape of the network, and the other project's own settings, so
that the way back gives what came.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from common.errors import ConfigError, DataError
from common.storage import atomic_folder
from models.cosmos import Cosmos, CosmosConfig
from models.image_dit import ImageDiT, ImageDiTConfig
from models.wan import Wan, WanConfig
from models.weights.folder import Imported

KINDS: dict[str, tuple[Any, Any]] = {
    "wan": (Wan, WanConfig),
    "cosmos": (Cosmos, CosmosConfig),
    "image_dit": (ImageDiT, ImageDiTConfig),
}


def is_own(path: Path) -> bool:
    """Whether `save_own` wrote this folder, as far as its `config.json` says."""
    try:
        return json.loads((path / "config.json").read_text()).get("kind") in KINDS
    except (OSError, ValueError, AttributeError):
        return False


def save_own(imported: Imported, path: Path) -> None:
    """Writes the network under our names, in the types it has."""
    network: Any = imported.network
    kind = next(name for name, (made, _) in KINDS.items() if type(network) is made)
    described = {"kind": kind, "config": asdict(network.config), "settings": imported.settings}
    tensors = {n: p.detach().contiguous() for n, p in network.named_parameters()}
    with atomic_folder(path) as folder:
        (folder / "config.json").write_text(json.dumps(described, indent=1) + "\n")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load_own(path: Path) -> Imported:
    """What `save_own` wrote. Raises `DataError` that lists what does not fit, with shapes."""
    try:
        raw = json.loads((path / "config.json").read_text())
        make, config = KINDS[raw["kind"]]
        with torch.device("meta"):
            network: nn.Module = make(config(**raw["config"]))
        settings = dict(raw["settings"])
        tensors = load_file(path / "model.safetensors")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, ConfigError) as error:
        raise DataError(f"the weights in {path} cannot be read: {error}") from error
    expected = {name: tuple(p.shape) for name, p in network.named_parameters()}
    problems = _problems(tensors, expected)
    if problems:
        raise DataError(
            f"{path} does not fit the network in {len(problems)} tensors:\n  "
            + "\n  ".join(problems)
        )
    for name in expected:
        module, _, leaf = name.rpartition(".")
        setattr(network.get_submodule(module), leaf, nn.Parameter(tensors[name]))
    return Imported(network, settings)


def _problems(tensors: dict[str, Tensor], expected: dict[str, tuple[int, ...]]) -> list[str]:
    found = {name: tuple(t.shape) for name, t in tensors.items()}
    return [
        *(f"missing: {name} {shape}" for name, shape in expected.items() if name not in found),
        *(f"unknown: {name} {shape}" for name, shape in found.items() if name not in expected),
        *(
            f"{name}: {found[name]} in the file, {shape} in the network"
            for name, shape in expected.items()
            if name in found and found[name] != shape
        ),
    ]
