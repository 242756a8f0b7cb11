"""Figures of a run: always to `metrics.jsonl`, and to Weights & Biases as asked."""

import json
import os
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from common.storage import write_atomic
from training.config import WandbConfig


class Metrics:
    """A line per record in `metrics.jsonl`, each with its `step`.

    A run that goes on from a checkpoint first drops the lines after that checkpoint's step, so
    the file reads as if nothing had happened.
    """

    def __init__(self, run: Path, config: WandbConfig, settings: dict[str, Any], step: int) -> None:
        self.path = run / "metrics.jsonl"
        self._keep_until(step)
        self._file = self.path.open("a", encoding="utf-8")
        self._wandb = _start_wandb(run, config, settings)

    def _keep_until(self, step: int) -> None:
        records = read_metrics(self.path.parent) if self.path.exists() else []
        kept = [json.dumps(record) + "\n" for record in records if record["step"] <= step]
        write_atomic(self.path, "".join(kept).encode())

    def log(self, step: int, **values: Any) -> None:
        """Writes one record; numbers also go to Weights & Biases."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        if self._wandb is not None:
            self._wandb.log(_flat(values), step=step)

    def log_videos(self, step: int, videos: dict[str, Path]) -> None:
        """Sends sample videos, by caption, to Weights & Biases; the files stay where they are."""
        if self._wandb is not None:
            import wandb

            media = {
                f"samples/{i}": wandb.Video(str(path), caption=caption, format="mp4")
                for i, (caption, path) in enumerate(videos.items())
            }
            self._wandb.log(media, step=step)

    def sync(self) -> None:
        """Everything logged so far is on the disk when this returns."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        if self._wandb is not None:
            self._wandb.finish()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The records of a run, in order, without a last one that is only begun."""
    records = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


class NoMetrics(Metrics):
    """For ranks that leave the writing to rank 0."""

    def __init__(self) -> None:
        pass

    def log(self, step: int, **values: Any) -> None:
        pass

    def log_videos(self, step: int, videos: dict[str, Path]) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{name}/{key}": item for key, item in value.items()}
        else:
            flat[name] = value
    return flat


def _start_wandb(run: Path, config: WandbConfig, settings: dict[str, Any]) -> Any:
    if config.mode == "disabled":
        return None
    try:
        import wandb
    except ImportError as error:
        raise ConfigError(
            f"wandb.mode={config.mode} needs the package wandb ({error}): install it with "
            "`pip install wandb`, or give wandb.mode=disabled"
        ) from None
    try:
        return wandb.init(
            project=config.project,
            name=run.name,
            dir=run,
            mode=config.mode,
            config=settings,
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
    except wandb.Error as error:
        raise ConfigError(
            f"wandb.mode={config.mode} does not start: {error}; log in with `wandb login`, or "
            "give wandb.mode=offline"
        ) from error
