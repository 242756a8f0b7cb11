"""What a demo folder remembers between calls: whose demo it is, and how long its parts took."""

import hashlib
import json
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from common.storage import write_atomic

SAMPLE = "the sample footage"


class DemoRecord:
    """`demo.json` of a demo folder.

    Args:
        videos: the folder of videos; None for the sample footage.
    Raises:
        ConfigError: where the folder holds the demo of other footage.
    """

    def __init__(self, output: Path, videos: str | None) -> None:
        self._output = output
        self._path = output / "demo.json"
        what = SAMPLE if videos is None else str(Path(videos).absolute())
        self._record: dict[str, Any] = {"footage": what, "shards": None, "wall_s": {}}
        if self._path.is_file():
            try:
                self._record.update(json.loads(self._path.read_text()))
            except ValueError:
                raise ConfigError(
                    f"{self._path} is damaged: choose another output folder"
                ) from None
        if self._record["footage"] != what:
            raise ConfigError(
                f"{output} holds the demo of {self._record['footage']}: "
                f"give output=DIR for that of {what}"
            )

    @property
    def wall_s(self) -> dict[str, float]:
        """Seconds that each part took, over all calls."""
        return self._record["wall_s"]

    def add(self, part: str, seconds: float) -> None:
        self.wall_s[part] = self.wall_s.get(part, 0.0) + seconds
        self._write()

    def trains_on(self, manifest: Path, run_folder: Path) -> None:
        """Raises `ConfigError` where the shards are not those that the model was trained on."""
        shards = hashlib.sha256(manifest.read_bytes()).hexdigest()
        if self._record["shards"] not in (None, shards) and run_folder.exists():
            raise ConfigError(
                f"the footage of {self._output} has changed since its model began to train: "
                f"give another output=DIR, or remove {run_folder} to train anew"
            )
        self._record["shards"] = shards
        self._write()

    def _write(self) -> None:
        text = json.dumps(self._record, indent=1, ensure_ascii=False)
        write_atomic(self._path, text.encode())
