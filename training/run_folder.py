"""The folder of a run: what lies in it, and whether a run may go on in it."""

import errno
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from common.errors import ConfigError
from common.storage import TEMPORARY_PREFIX
from parallel import checkpoint
from parallel.ema_snapshots import forget_after
from training.config import TrainConfig

# What may change when a run goes on: how it is watched and stored, how long it lasts, where it
# lies, how its data is read, and over how many ranks; never what is computed, unless
# data.accept_changes asks for it.
_FREE = (
    "output",
    "steps",
    "device",
    "checkpoint_every",
    "keep_checkpoints",
    "validation.every",
    "samples",
    "wandb",
    "parallel",
    "tokenizer.path",
    "data.path",
    "data.cache_bytes",
    "data.prefetch_packs",
    "data.num_threads",
    "data.max_bad_clips",
    "data.accept_changes",
)


class RunFolder:
    """`config.yaml`, `metrics.jsonl`, `tokenizer/`, `checkpoints/`, `samples/`,
    `ema_snapshots/`, and `.lock`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = path / ".lock"
        self.checkpoints = path / "checkpoints"
        self.tokenizer = path / "tokenizer"
        self.samples = path / "samples"

    def resume_point(self, config: TrainConfig) -> Path | None:
        """The checkpoint to go on from. Writes nothing.

        Raises `ConfigError` where the folder cannot be written or is in use, where the run in it
        is longer than asked for, or where it computes something else; what differs is named.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"output={self.path} is a file; give a folder for the run")
        parent = _nearest_existing(self.path)
        if not parent.is_dir():
            raise ConfigError(f"output={self.path}: {parent} is a file; give another folder")
        if not os.access(parent, os.W_OK):
            raise ConfigError(f"output={self.path} cannot be written; give another folder")
        if (self.path / "shards").is_dir():
            raise ConfigError(f"output={self.path} is a curated folder; give another for the run")
        if self._lock.exists():
            with self._lock.open() as file:
                self._claim(file, fcntl.LOCK_SH)
        newest = self._newest()
        if newest is not None:
            state = checkpoint.read_state(newest)
            _refuse_changes(state["config"], asdict(config), self.path)
            if state["step"] > config.steps:
                raise ConfigError(
                    f"steps={config.steps}, but the run in {self.path} is trained to step "
                    f"{state['step']} already; give more steps, or another output folder"
                )
        return newest

    @contextmanager
    def lock(self, resume_from: Path | None) -> Iterator[None]:
        """Keeps the folder for this process, and removes what killed writers left in it, and
        averages of steps after `resume_from`.

        Raises `ConfigError` where another process has it, naming that process, or where another
        has trained in it since `resume_from` was found.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a+") as file:
            self._claim(file, fcntl.LOCK_EX)
            if self._newest() != resume_from:
                raise ConfigError(
                    f"another process trained in output={self.path} just now; run the same "
                    "command again to go on from there"
                )
            file.truncate(0)
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
            file.flush()
            self._sweep()
            # Whoever was killed after the last checkpoint may have had other settings.
            forget_after(self.path, checkpoint.step_of(resume_from) if resume_from else 0)
            yield

    def _claim(self, file: IO[str], kind: int) -> None:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            try:
                holder = json.loads(file.read())
                who = f"process {holder['pid']} on {holder['host']}"
            except (ValueError, KeyError, TypeError):
                who = "another process"
            raise ConfigError(
                f"output={self.path} is in use by {who}; wait for it to end, or give another folder"
            ) from None
        except OSError as error:
            # Some network file systems have no locks; a run there is only less protected.
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise

    def _sweep(self) -> None:
        for folder in (self.path, self.checkpoints, *self.samples.glob("*")):
            for left in folder.glob(f"{TEMPORARY_PREFIX}*"):
                if left.is_dir():
                    shutil.rmtree(left)
                else:
                    left.unlink(missing_ok=True)

    def _newest(self) -> Path | None:
        return next(reversed(checkpoint.found(self.checkpoints)), None)


def _refuse_changes(stored: dict[str, Any], now: dict[str, Any], run: Path) -> None:
    before, after = dict(_flat(stored)), dict(_flat(now))
    # The loader then goes on with what it is given.
    data = ("data.",) if after["data.accept_changes"] else ()
    free = (*(f"{name}." for name in _FREE), *data)
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
