"""What a loader's settings make of its folders: clips, windows, and the planner of packs."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from common.errors import ConfigError, DataError, nearest
from common.store_path import place_of
from dataloading.config import SPLITS, Compression, CurriculumStage, LoaderConfig
from dataloading.encoded import check_settings, encoded_windows
from dataloading.index import ClipTable
from dataloading.order import FixedOrder, ShuffledOrder
from dataloading.plan import PackRules, Planner, Stage
from dataloading.sources import Order, Sample
from dataloading.split import Windows, WindowShape, windows_of

PLAN_VERSION = 3
"""Raised by any change that makes other packs from the same data and settings."""
_FILL_PACKS = 200
_FILL_SAMPLES = 20_000


@dataclass(frozen=True, kw_only=True)
class ValWindow:
    """A window held out of training."""

    clip_id: str
    start_s: float
    num_frames: int
    fps: float


class Catalogue:
    """The clips of a split and all that the stream of packs depends on; no video is opened.

    Attributes:
        table: the clips of all folders.
        stages: those of the curriculum, each with its windows; one where there is no curriculum.
        rules: what packs are made by.
    """

    def __init__(self, config: LoaderConfig, compression: Compression, split: str) -> None:
        """Raises `ConfigError` for impossible settings, `DataError` where data is missing or gives
        nothing."""
        if split not in SPLITS:
            raise ConfigError(
                f"split is {split!r}, must be one of {', '.join(SPLITS)}" + nearest(split, SPLITS)
            )
        config.check(compression)
        self.config = config
        self.compression = compression
        self.split = split
        self.table = ClipTable([place_of(path) for path in config.paths])
        if self.table.encoded:
            check_settings(self.table.encoded, " and ".join(config.paths), config, compression)
        self.stages = [
            Stage(
                from_pack=stage.from_pack,
                windows=self._windows(split, stage),
                shares=[(stage.blend or {}).get(path, 0.0) for path in config.paths],
            )
            for stage in (config.stages[-1:] if split == "val" else config.stages)
        ]
        if split == "val":
            self.stages = [Stage(from_pack=0, windows=self.stages[0].windows, shares=[1.0])]
        else:
            self._check_shares()
        means = [m for stage in self.stages if (m := stage.windows.mean_tokens)]
        mean_tokens = min(means, default=1.0)
        pool_size, max_age = config.pool(mean_tokens)
        self.rules = PackRules(
            token_budget=config.token_budget,
            pool_size=pool_size,
            max_age=max_age,
            window=1 if split == "val" else config.window(mean_tokens),
            alike=config.batches == "bucketed",
        )

    def _windows(self, split: str, stage: CurriculumStage) -> Windows:
        of = encoded_windows if self.table.encoded else windows_of
        return of(self.table, self.config, self.compression, split, stage)

    def _check_shares(self) -> None:
        """Refuses a stage in which a folder is to give samples and has none."""
        for stage, said in zip(self.stages, self.config.stages, strict=True):
            for number, path in enumerate(self.config.paths):
                first, end = self._clips_of(number)
                if not stage.shares[number] or stage.windows.usable[first:end].any():
                    continue
                late = f" from pack {stage.from_pack} on" if stage.from_pack else ""
                raise DataError(
                    f"none of the {end - first} clips of {path} has room for a window{late}: "
                    f"num_frames {said.num_frames} at {self.config.fps or 'their own'} frames/s; "
                    "take shorter windows or a higher fps"
                )

    def _clips_of(self, folder: int) -> tuple[int, int]:
        """First and last ordinal, and one more, of a folder."""
        first, end = self.table.shard_start[self.table.folder_start[folder : folder + 2]].tolist()
        return first, end

    @cached_property
    def usable(self) -> np.ndarray:
        """`bool [n]`: clips that have a window in any stage."""
        return np.any([stage.windows.usable for stage in self.stages], axis=0)

    @cached_property
    def too_short(self) -> list[str]:
        """Clips that never give a sample in training; those of validation are none's fault."""
        if self.split == "val":
            return []
        return self.table.clip_ids(np.flatnonzero(~self.usable))

    def planner(self) -> Planner:
        """A new one, at the start."""
        orders: list[Order]
        if self.split == "val":
            orders = [FixedOrder(self.usable)]
        else:
            table = self.table
            orders = [
                ShuffledOrder(
                    self.usable,
                    table.shard_start[table.folder_start[i] : table.folder_start[i + 1] + 1],
                    seed=self.config.seed,
                    shuffle_shards=self.config.shuffle_shards,
                )
                for i in range(len(self.config.paths))
            ]
        return Planner(self.table, self.stages, orders, seed=self.config.seed, rules=self.rules)

    def identity(self) -> dict[str, Any]:
        """All that the stream of packs depends on."""
        config, compression = self.config, self.compression
        return {
            "plan_version": PLAN_VERSION,
            "data": self.table.fingerprints,
            "split": self.split,
            "seed": config.seed,
            "token_budget": config.token_budget,
            "num_frames": sorted(config.num_frames),
            "size": list(config.size),
            "resize": config.resize,
            "fps": config.fps,
            "batches": config.batches,
            "blend": self.stages[0].shares,
            "curriculum": [
                [said.from_pack, sorted(said.num_frames or []), said.size, stage.shares]
                for stage, said in zip(self.stages[1:], config.stages[1:], strict=False)
            ],
            "shuffle_shards": config.shuffle_shards,
            "pool_size": self.rules.pool_size,
            "max_age": self.rules.max_age,
            "balance_packs": self.rules.window,
            "compression": [compression.temporal, compression.spatial, *compression.patch],
        }

    def shape_of(self, sample: Sample) -> tuple[int, int, int]:
        """Frames, width and height of the sample's window."""
        windows = self.stages[sample.stage].windows
        width, height = windows.size[sample.ordinal].tolist()
        return int(windows.candidates[sample.candidate]), width, height

    # What there is

    @property
    def windows(self) -> Windows:
        """Those that the run ends with."""
        return self.stages[-1].windows

    def val_windows(self) -> list[ValWindow]:
        """The held-out windows, in their order, whatever this loader's own split."""
        windows = self._windows("val", self.config.stages[-1])
        held = np.flatnonzero(windows.usable)
        lengths = windows.candidates[np.argmax(windows.starts[held] > 0, axis=1)]
        starts_s = windows.first[held, 0] / self.table.fps[held]
        columns = (lengths.tolist(), starts_s.tolist(), windows.fps[held].tolist())
        return [
            ValWindow(clip_id=i, num_frames=t, start_s=s, fps=f if t > 1 else 0.0)
            for i, t, s, f in zip(self.table.clip_ids(held), *columns, strict=True)
        ]

    def typical_shape(self) -> WindowShape:
        """What most samples look like at the end; see `Windows.typical_shape`."""
        return self.windows.typical_shape()

    def largest_grid(self) -> tuple[int, int, int]:
        """The most patches along each of (t, h, w) that samples of any stage have."""
        grids = []
        for windows in (stage.windows for stage in self.stages):
            for c in np.flatnonzero(np.any(windows.starts > 0, axis=0)):
                sizes = np.unique(windows.size[windows.starts[:, c] > 0], axis=0).tolist()
                num_frames = int(windows.candidates[c])
                grids += [self.compression.grid(num_frames, *size) for size in sizes]
        t, h, w = np.max(grids, axis=0).tolist() if grids else (0, 0, 0)
        return t, h, w

    def describe(self, *, max_packs: int = _FILL_PACKS) -> dict[str, Any]:
        """What an epoch holds, and how full packs will be (planned, without reading a video).

        At least one pack and at most `max_packs` are planned for it, fewer where they hold very
        many samples.
        """
        windows = self.windows
        fitting = windows.starts > 0
        num_clips = int(windows.usable.sum())
        planner = self.planner()
        packs = []
        num_samples = 0
        while len(packs) < max_packs and num_samples < _FILL_SAMPLES:
            pack = planner.next_pack()
            if pack is None:
                break
            packs.append(pack)
            num_samples += len(pack.samples)
        tokens = sum(pack.tokens for pack in packs)
        lengths = windows.candidates.tolist()
        return {
            "split": self.split,
            "clips": len(self.table),
            "samples_per_epoch": num_clips,
            "too_short": len(self.too_short),
            "windows": int(windows.starts.sum()),
            "clips_that_fit": dict(zip(lengths, fitting.sum(axis=0).tolist(), strict=True)),
            "tokens_per_epoch": num_clips * windows.mean_tokens,
            "token_budget": self.config.token_budget,
            "fill": tokens / (len(packs) * self.config.token_budget) if packs else 0.0,
            "samples_per_pack": num_samples / len(packs) if packs else 0.0,
        }
