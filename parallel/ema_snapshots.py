"""Stored averages of a run, and the average of any width made of them.

`ema_snapshots/step-00000100/0.05.safetensors` is the average of width 0.05 at step 100.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from common.errors import DataError
from common.storage import atomic_folder
from models.power_ema import Profile, combination, gamma_of
from parallel.store import SafetensorsStore

FOLDER = "ema_snapshots"
_NAME = re.compile(r"step-(\d{8})")


def save_snapshot(run: Path, step: int, tracks: Mapping[float, Mapping[str, Tensor]]) -> None:
    """Writes the averages of a step, by width; whole or not at all."""
    with atomic_folder(run / FOLDER / f"step-{step:08d}") as folder:
        for width, tensors in tracks.items():
            SafetensorsStore().save(folder, f"{width:g}", tensors)


def forget_after(run: Path, step: int) -> None:
    """Removes the averages of later steps: those of a run that was killed before a checkpoint."""
    for folder in (run / FOLDER).glob("step-*"):
        if (found := _NAME.fullmatch(folder.name)) and int(found[1]) > step:
            shutil.rmtree(folder)


def reconstruct(run: Path, width: float, step: int) -> dict[str, Tensor]:
    """The average of `width` at `step`, from all snapshots up to that step.

    Raises `DataError` where there are none, and `ConfigError` for an impossible width.
    """
    wanted = Profile(step, gamma_of(width))
    files = [
        (int(found[1]), file)
        for file in sorted((run / FOLDER).glob("step-*/*.safetensors"))
        if (found := _NAME.fullmatch(file.parent.name)) and int(found[1]) <= step
    ]
    if not files:
        raise DataError(
            f"{run} has no stored averages up to step {step}: train with "
            "power_ema.widths=[0.05,0.1]"
        )
    stored = [Profile(at, gamma_of(float(file.stem))) for at, file in files]
    total: dict[str, Tensor] = {}
    for (_, file), factor in zip(files, combination(stored, wanted), strict=True):
        for name, tensor in SafetensorsStore().load(file.parent, file.stem).items():
            part = tensor.double() * factor
            total[name] = total[name] + part if name in total else part
    return {name: tensor.float() for name, tensor in total.items()}
