"""Folders of weights as diffusers saves them: `config.json` and safetensors, one file or more."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from common.errors import DataError, nearest
from common.storage import atomic_folder
from models.weights import cosmos, image_dit, wan
from models.weights.mapping import from_file, to_file
from models.weights.settings import Settings

NAME = "diffusion_pytorch_model"
FORMATS: dict[str, ModuleType] = {m.CLASS_NAME: m for m in (wan, cosmos, image_dit)}


@dataclass(frozen=True)
class Imported:
    """A network from a folder, with what the folder says of itself."""

    network: nn.Module
    settings: dict[str, Any]
    """`config.json` as it was."""


def load_folder(path: Path) -> Imported:
    """The network that the folder describes, with its weights, in the file's types.

    Raises `DataError` or `ConfigError` naming what is missing, unknown or not supported.
    """
    raw = _read_json(path / "config.json")
    name = str(raw.get("_class_name"))
    if name not in FORMATS:
        raise DataError(
            f"{path / 'config.json'} describes a {name}{nearest(name, FORMATS)}; known are "
            + ", ".join(FORMATS)
        )
    layout = FORMATS[name]
    config = layout.config_of(Settings(raw, str(path / "config.json")))
    with torch.device("meta"):
        network = layout.NETWORK(config)
    try:
        from_file(network, _read_tensors(path), layout.rules(config))
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return Imported(network, raw)


def save_folder(network: nn.Module, path: Path, settings: dict[str, Any] | None = None) -> None:
    """Writes a folder that diffusers reads. Weights that were imported come out byte for byte.

    Args:
        settings: for `config.json`; None makes them of the network's shape.
    """
    layout = next(layout for layout in FORMATS.values() if type(network) is layout.NETWORK)
    config = network.config
    if settings is None:
        settings = {"_class_name": layout.CLASS_NAME, **layout.settings_of(config)}
    tensors = to_file(dict(network.named_parameters()), layout.rules(config))
    with atomic_folder(path) as folder:
        text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
        (folder / "config.json").write_text(text)
        save_file(tensors, folder / f"{NAME}.safetensors", metadata={"format": "pt"})


def _read_tensors(path: Path) -> dict[str, Tensor]:
    index = path / f"{NAME}.safetensors.index.json"
    names = [f"{NAME}.safetensors"]
    if index.is_file():
        names = sorted(set(_read_json(index).get("weight_map", {}).values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        # Names come from a file: none may lead out of its folder.
        file = path / Path(name).name
        try:
            tensors |= load_file(file)
        except FileNotFoundError:
            raise DataError(f"{file} does not exist") from None
        except (SafetensorError, OSError) as error:
            raise DataError(f"{file} cannot be read: {error}") from error
    return tensors


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except FileNotFoundError:
        raise DataError(f"{file} does not exist: this is no folder of weights") from None
    except ValueError as error:
        raise DataError(f"{file} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{file} is damaged: it holds no settings")
    return content
