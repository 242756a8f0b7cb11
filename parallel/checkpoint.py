"""Checkpoint folders: whole or absent, and readable without knowing who wrote them.

`checkpoints/step-00000100/` holds `model`, `ema` and `optimizer` tensors, `state.json` (step,
seed, loader state), `config.yaml`, and `tokenizer/`. It is filled under a temporary name and
renamed, so a save that is killed leaves the last good one.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from common.errors import DataError
from common.storage import TEMPORARY_PREFIX, atomic_folder
from parallel.store import SafetensorsStore, TensorStore

FORMAT_VERSION = 2
"""Raised by any change after which checkpoints written before cannot be read as they are."""
_NAME = re.compile(r"step-(\d{8})")


@dataclass(kw_only=True)
class Checkpoint:
    """What a checkpoint holds. `state` must be JSON: nothing here is ever unpickled."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: dict[str, Any]
    config_yaml: str
    folders: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    """Sub-folders by name, each with the function that fills it."""


def save(root: Path, checkpoint: Checkpoint, store: TensorStore | None = None) -> Path:
    """Writes `root/step-NNNNNNNN` and returns it."""
    store = store or SafetensorsStore()
    path = root / f"step-{checkpoint.step:08d}"
    with atomic_folder(path) as folder:
        for group, tensors in checkpoint.tensors.items():
            store.save(folder, group, tensors)
        for name, fill in checkpoint.folders.items():
            fill(folder / name)
        state = {"format_version": FORMAT_VERSION, "step": checkpoint.step, **checkpoint.state}
        (folder / "state.json").write_text(json.dumps(state, indent=1, sort_keys=True) + "\n")
        (folder / "config.yaml").write_text(checkpoint.config_yaml)
    return path


def keep_last(root: Path, count: int) -> None:
    """Removes all but the newest `count` checkpoints."""
    for path in found(root)[:-count]:
        # Under another name first: a kill halfway must not leave half a checkpoint by its name.
        doomed = root / f"{TEMPORARY_PREFIX}{path.name}"
        path.rename(doomed)
        shutil.rmtree(doomed)


def found(root: Path) -> list[Path]:
    """The complete checkpoints under `root`, oldest first."""
    if not root.is_dir():
        return []
    return sorted(p for p in root.iterdir() if _NAME.fullmatch(p.name) and p.is_dir())


def step_of(path: Path) -> int:
    """The step of one of those `found`."""
    return int(path.name.removeprefix("step-"))


def resolve(path: Path) -> Path:
    """A checkpoint from what a user gives: a checkpoint, its parent, or a run folder.

    Raises `DataError` naming what was looked for.
    """
    if (path / "state.json").is_file():
        return path
    for root in (path / "checkpoints", path):
        checkpoints = found(root)
        if checkpoints:
            return checkpoints[-1]
    what = "does not exist" if not path.exists() else "holds no checkpoint"
    raise DataError(
        f"checkpoint={path} {what}: give a run folder of `vfm pretrain`, or one of its "
        "checkpoints/step-NNNNNNNN"
    )


def read_state(path: Path) -> dict[str, Any]:
    """The JSON state of a checkpoint. Raises `DataError` naming the file."""
    file = path / "state.json"
    try:
        state = json.loads(file.read_text())
        version = state["format_version"]
    except FileNotFoundError:
        raise DataError(f"{file} does not exist: {path} is not a checkpoint") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is damaged: {error}") from error
    if version != FORMAT_VERSION:
        raise DataError(
            f"{path} has checkpoint format {version}, this vfm reads {FORMAT_VERSION}; use the vfm "
            "that wrote it, or train in another output folder"
        )
    return state


def read_tensors(
    path: Path,
    group: str,
    expected: Mapping[str, Tensor],
    store: TensorStore | None = None,
    *,
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda tensors: tensors,
) -> dict[str, Tensor]:
    """A group of tensors, checked against the names and shapes that are `expected`.

    `change` is what is done to them before.

    Raises `DataError` that lists every name that is missing, unknown, or of another shape.
    """
    tensors = change((store or SafetensorsStore()).load(path, group))
    check_fit(tensors, expected, f"{path} ({group})")
    return tensors


def check_fit(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    """Raises `DataError` that lists every name that is missing, unknown, or of another shape."""
    problems = [f"missing: {name}" for name in expected if name not in tensors]
    problems += [f"unknown: {name}" for name in tensors if name not in expected]
    problems += [
        f"{name}: {tuple(tensors[name].shape)} stored, {tuple(wanted.shape)} in the model"
        for name, wanted in expected.items()
        if name in tensors and tensors[name].shape != wanted.shape
    ]
    if problems:
        shown = "\n  ".join(problems[:20])
        more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise DataError(f"{where} does not fit this model:\n  {shown}{more}")
