"""What `vfm encode` does: windows of curated shards to latents and text embeddings, once."""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console

from common.errors import ConfigError, DataError, MediaError, NothingProduced
from common.ranges import Ranges
from common.rng import check_seed
from common.storage import write_atomic
from dataloading.catalogue import Catalogue
from dataloading.config import Compression, LoaderConfig
from dataloading.encoded import EncodedWindow, write_shard
from dataloading.reader import Window, WindowReader
from dataloading.schema import EncodedWith, Manifest, ShardInfo, index_path, write_manifest
from dataloading.sources import Sample
from dataloading.threads import ReadPool, StorageWatch
from models.encoding import choose_device
from models.text.choose import TextConfig, make_text_encoder
from models.text.hashed import HashedTextConfig
from models.tokenizers.hub import Precision
from models.tokenizers.load import load_tokenizer
from training.progress import RunProgress

PLAN_NAME = "plan.json"
_NO_BUDGET = 1 << 40


@dataclass(kw_only=True)
class EncodeTokenizer:
    """The tokenizer that encodes."""

    path: str
    """A folder that vfm or diffusers saved a tokenizer in, or a hub id of a Cosmos or Wan one."""
    precision: Precision = "fp32"
    """In which an autoencoder of Cosmos or Wan computes; ours is always fp32."""


@dataclass(kw_only=True)
class EncodeConfig:
    """Which windows of a curated folder are encoded, and with what."""

    folder: str = field(metadata={"url": True})
    """The curated folder, or its URL in an object store."""
    output: str | None = None
    """By default `FOLDER/encoded/HASH`, the hash naming tokenizer, text encoder and settings."""
    tokenizer: EncodeTokenizer
    text: TextConfig = field(default_factory=HashedTextConfig)
    num_frames: list[int] = field(default_factory=lambda: [1, 17, 33])
    size: list[int] = field(default_factory=lambda: [256, 256])
    resize: str = "area"
    fps: float | None = 24.0
    patch: list[int] = field(default_factory=lambda: [1, 2, 2])
    """Of the models to be trained: sizes are multiples of it."""
    windows_per_clip: int = 1
    """Windows for training, at random places, of each length that a clip has room for."""
    windows_per_shard: int = 512
    seed: int = 0
    num_threads: int = 2
    """That read and decode videos."""
    max_bad_windows: int = 100
    """More windows that cannot be read than this end the run with a list of them."""
    device: str = "auto"

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name in ("windows_per_clip", "windows_per_shard", "num_threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if len(self.patch) != 3:
            raise ConfigError(f"patch is {self.patch}, must be three numbers (t, h, w)")


class Job(NamedTuple):
    """One window to be encoded."""

    split: str
    key: str
    sample: Sample


@dataclass(kw_only=True)
class Encoded:
    """What a run made, or found made."""

    output: Path
    windows: int
    failed: list[dict[str, str]]


class EncodeRun:
    """Shard by shard, each whole or absent, so that a killed run goes on where it was. The windows
    of a shard depend on folder and settings alone, and its bytes on these and the encoders.

    Raises `ConfigError` or `DataError` before any work where the request cannot be met.
    """

    def __init__(self, config: EncodeConfig, console: Console) -> None:
        self.config, self.console = config, console
        self.device = choose_device(config.device)
        self.tokenizer = load_tokenizer(
            config.tokenizer.path, self.device, precision=config.tokenizer.precision
        )
        self.text = make_text_encoder(config.text, self.device)
        self.compression = Compression(
            temporal=self.tokenizer.temporal,
            spatial=self.tokenizer.spatial,
            patch=(config.patch[0], config.patch[1], config.patch[2]),
        )
        self.catalogues = {
            split: Catalogue(self._loader_config(), self.compression, split)
            for split in ("train", "val")
        }
        table = self.catalogues["train"].table
        if table.encoded:
            raise DataError(f"{config.folder} holds encoded windows; give the curated folder")
        self.identity = {
            "data": table.fingerprints,
            "settings": {
                name: value
                for name, value in asdict(config).items()
                if name not in ("folder", "output", "num_threads", "max_bad_windows", "device")
            },
            "tokenizer": [self.tokenizer.temporal, self.tokenizer.spatial, self.tokenizer.channels],
        }
        self.output = self._output()
        self._check_plan()
        self.shards = list(self._planned())

    def plan(self) -> list[str]:
        """What `run` would do, in lines for a person."""
        jobs = [job for _, of in self.shards for job in of]
        held_out = sum(job.split == "val" for job in jobs)
        done = sum(self._done(path) is not None for path, _ in self.shards)
        return [
            f"{len(jobs)} windows, {held_out} of them held out, in {len(self.shards)} shards, "
            f"of which {done} are there",
            f"output: {self.output}",
        ]

    def run(self, on_start: Callable[[], None] = lambda: None) -> Encoded:
        """Encodes what is not yet encoded. `on_start` is called once the folder is made.

        Raises `DataError` where too many windows cannot be read, and `NothingProduced` where none
        can.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(self._made("tokenizer"))
        write_atomic(self.output / PLAN_NAME, _json(self.identity))
        on_start()
        infos: list[ShardInfo] = []
        failed: list[dict[str, str]] = []
        total = sum(len(jobs) for _, jobs in self.shards)
        with RunProgress(self.console) as progress, progress.task("encode", total) as tick:
            done = 0
            for path, jobs in self.shards:
                record = self._done(path) or self._encode(path, jobs)
                failed += record["failed"]
                if record["shard"] is not None:
                    infos.append(ShardInfo(**record["shard"]))
                if len(failed) > self.config.max_bad_windows:
                    listed = "; ".join(f"{f['window']}: {f['reason']}" for f in failed)
                    raise DataError(
                        f"{len(failed)} windows of {self.config.folder} cannot be encoded, more "
                        f"than max_bad_windows ({self.config.max_bad_windows}): {listed}"
                    )
                done += len(jobs)
                tick(done, 0.0)
        lines = "".join(json.dumps(f, sort_keys=True) + "\n" for f in failed)
        write_atomic(self.output / "failed.jsonl", lines.encode())
        if not infos:
            raise NothingProduced(f"not one window of {self.config.folder} could be encoded")
        write_manifest(
            self._made("shards"),
            Manifest(shards=sorted(infos, key=lambda i: i.path), encoded=self._with()),
        )
        return Encoded(
            output=self.output, windows=sum(info.num_clips for info in infos), failed=failed
        )

    def _loader_config(self) -> LoaderConfig:
        config = self.config
        return LoaderConfig(
            path=config.folder,
            token_budget=_NO_BUDGET,
            num_frames=config.num_frames,
            size=config.size,
            resize=config.resize,
            fps=config.fps,
            seed=config.seed,
            pool_size=1,
            cache_bytes=0,
        )

    def _with(self) -> EncodedWith:
        names = ("num_frames", "size", "resize", "fps")
        tokenizer = self.tokenizer
        return EncodedWith(
            tokenizer={
                "temporal": tokenizer.temporal,
                "spatial": tokenizer.spatial,
                "channels": tokenizer.channels,
            },
            text={**asdict(self.config.text), "dim": self.text.dim},
            data={name: getattr(self.config, name) for name in names},
        )

    def _output(self) -> Path:
        if self.config.output is not None:
            return Path(self.config.output)
        if "://" in self.config.folder:
            raise ConfigError("output has no value; give a local folder, since folder is a URL")
        digest = hashlib.sha256(_json(self.identity)).hexdigest()[:12]
        return Path(self.config.folder) / "encoded" / digest

    def _check_plan(self) -> None:
        """Refuses a folder of another encoding."""
        path = self.output / PLAN_NAME
        if path.is_file() and path.read_bytes() != _json(self.identity):
            raise ConfigError(
                f"output={self.output} holds windows of other data or settings; give another folder"
            )
        if (self.output / "tokenizer").is_dir() and not self.tokenizer.equals(
            load_tokenizer(self.output / "tokenizer", self.device)
        ):
            raise ConfigError(
                f"output={self.output} was encoded by another tokenizer; give another folder"
            )

    def _made(self, name: str) -> Path:
        folder = self.output / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _planned(self) -> Iterator[tuple[str, list[Job]]]:
        for split in ("train", "val"):
            jobs = list(self._jobs(split))
            size = self.config.windows_per_shard
            for first in range(0, len(jobs), size):
                yield f"{split}/{split}-{first // size:06d}.tar", jobs[first : first + size]

    def _jobs(self, split: str) -> Iterator[Job]:
        """All windows of a split: of each length that has room, at as many places as asked for."""
        catalogue = self.catalogues[split]
        windows = catalogue.stages[0].windows
        usable = np.flatnonzero(windows.usable)
        for clip_id, ordinal in zip(catalogue.table.clip_ids(usable), usable, strict=True):
            for candidate in np.flatnonzero(windows.starts[ordinal] > 0):
                places = int(windows.starts[ordinal, candidate])
                num_frames = int(windows.candidates[candidate])
                for number in range(min(self.config.windows_per_clip, places)):
                    tokens = int(windows.tokens[ordinal, candidate])
                    sample = Sample(int(ordinal), number, 0, int(candidate), tokens, 0)
                    yield Job(split, f"{clip_id}-{split}-{num_frames}f-{number}", sample)

    def _done(self, path: str) -> dict[str, Any] | None:
        """What was noted of a shard that is whole."""
        try:
            record = json.loads(self._record(path).read_bytes())
        except (OSError, ValueError):
            return None
        shard = record["shard"]
        if shard is not None:
            tar = self.output / "shards" / path
            whole = tar.is_file() and tar.stat().st_size == shard["num_bytes"]
            if not whole or not (self.output / "shards" / index_path(path)).is_file():
                return None
        return record

    def _record(self, path: str) -> Path:
        return self.output / "ledger" / f"{path}.json"

    def _encode(self, path: str, jobs: list[Job]) -> dict[str, Any]:
        made: list[EncodedWindow] = []
        failed: list[dict[str, str]] = []
        for job, got in self._read(jobs):
            try:
                made.append(self._window(job, got()))
            except MediaError as error:
                failed.append({"window": job.key, "reason": error.reason, "detail": error.detail})
        shard = asdict(write_shard(self._made("shards"), path, made)) if made else None
        record = {"shard": shard, "failed": failed}
        write_atomic(self._record(path), _json(record))
        return record

    def _read(self, jobs: list[Job]) -> Iterator[tuple[Job, Callable[[], Window]]]:
        """Each job with what gives its window, read ahead by threads."""
        watch = StorageWatch(50.0)
        ranges = Ranges()
        readers = {
            split: WindowReader(
                of.table,
                [stage.windows for stage in of.stages],
                seed=self.config.seed,
                cache_bytes=0,
                ranges=ranges,
                watch=watch,
            )
            for split, of in self.catalogues.items()
        }
        pool = ReadPool(self.config.num_threads, "encode-read")
        waiting: deque[tuple[Job, Future[Window]]] = deque()
        try:
            for job in jobs:
                waiting.append((job, pool.submit(readers[job.split].read, job.sample)))
                if len(waiting) > 2 * self.config.num_threads:
                    first, future = waiting.popleft()
                    yield first, lambda future=future: watch.wait(future)
            while waiting:
                first, future = waiting.popleft()
                yield first, lambda future=future: watch.wait(future)
        finally:
            pool.shutdown(wait=not watch.stalled, cancel_futures=True)

    @torch.no_grad()
    def _window(self, job: Job, window: Window) -> EncodedWindow:
        assert window.frames is not None
        latents = self.tokenizer.encode(window.frames.to(self.device)).float().cpu()
        text, _ = self.text.encode([window.caption])
        if not bool(torch.isfinite(latents).all() and torch.isfinite(text).all()):
            raise MediaError("not_finite", f"{job.key}: the encoders gave values not finite")
        num_frames, height, width, _ = window.frames.shape
        return EncodedWindow(
            key=job.key,
            clip_id=window.clip_id,
            caption=window.caption,
            start_s=window.start_s,
            fps=window.fps,
            num_frames=num_frames,
            width=width,
            height=height,
            latents=latents,
            text=text.float().cpu(),
        )


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
