"""The folder of a run: what lies in it, and whether a run may go on in it."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from parallel import checkpoint
from training.config import TrainConfig

# What may change when a run goes on: how it is watched and stored, how long it lasts, where it
# lies, and how its data is read; never what is computed.
_FREE = (
    "output",
    "steps",
    "device",
    "checkpoint_every",
    "keep_checkpoints",
    "validation",
    "samples",
    "wandb",
    "tokenizer.path",
    "data.path",
    "data.cache_bytes",
    "data.prefetch_packs",
    "data.num_threads",
    "data.max_bad_clips",
)


class RunFolder:
    """`config.yaml`, `metrics.jsonl`, `tokenizer/`, `checkpoints/`, `samples/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.tokenizer = path / "tokenizer"
        self.samples = path / "samples"

    def resume_point(self, config: TrainConfig) -> Path | None:
        """The checkpoint to go on from. Writes nothing.

        Raises `ConfigError` where the folder cannot be written, or where the run in it computes
        something else; the settings that differ are named.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"output={self.path} is a file; give a folder for the run")
        if not os.access(_nearest_existing(self.path), os.W_OK):
            raise ConfigError(f"output={self.path} cannot be written; give another folder")
        found = checkpoint.found(self.checkpoints)
        if found:
            stored = checkpoint.read_state(found[-1])["config"]
            _refuse_changes(stored, asdict(config), self.path)
        return found[-1] if found else None


def _refuse_changes(stored: dict[str, Any], now: dict[str, Any], run: Path) -> None:
    before, after = dict(_flat(stored)), dict(_flat(now))
    free = tuple(f"{name}." for name in _FREE)
    changed = [
        f"{key}={after.get(key)} (the run has {before.get(key)})"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in _FREE and not key.startswith(free)
    ]
    if before.get("steps") != after.get("steps") and after["optimizer.schedule"] != "constant":
        changed.append(
            f"steps={after['steps']} (the run has {before['steps']}, and its "
            f"{after['optimizer.schedule']} schedule depends on it)"
        )
    if changed:
        raise ConfigError(
            f"the run in {run} cannot go on with {', '.join(changed)}; "
            "give the same values, or another output folder"
        )


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, list(value) if isinstance(value, tuple) else value


def _nearest_existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
