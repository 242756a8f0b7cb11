"""How a checkpoint's tensors reach the disk: one small interface over a library."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from common.errors import DataError


class TensorStore(Protocol):
    """Writes and reads named groups of tensors (`model`, `ema`, `optimizer`) inside a folder."""

    def save(self, folder: Path, group: str, tensors: Mapping[str, Tensor]) -> None: ...

    def load(self, folder: Path, group: str) -> dict[str, Tensor]:
        """Raises `DataError` naming the file where it is missing or damaged."""
        ...


class SafetensorsStore:
    """One `GROUP.safetensors` per group: the store of a single process."""

    def save(self, folder: Path, group: str, tensors: Mapping[str, Tensor]) -> None:
        whole = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        save_file(whole, folder / f"{group}.safetensors")

    def load(self, folder: Path, group: str) -> dict[str, Tensor]:
        path = folder / f"{group}.safetensors"
        try:
            return load_file(path)
        except FileNotFoundError:
            raise DataError(f"the checkpoint {folder} has no {path.name}") from None
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path} is damaged: {error}") from error
