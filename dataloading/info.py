"""What a folder of shards holds, and how full packs of it would be."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from common.errors import DataError, MediaError
from common.media import VideoReader
from dataloading.catalogue import Catalogue
from dataloading.config import Compression, LoaderConfig
from dataloading.folder import (
    ShardFolder,
    TarSample,
    described,
    list_tar,
    read_member,
    samples_of,
    sizes_below,
)
from dataloading.schema import read_index

MAX_PROBED = 200
"""Videos whose headers are read where no index speaks of them; evenly spread."""
_MAX_PACKS = 50


@dataclass(kw_only=True)
class Contents:
    """Counts over a folder. Of those in `of_probed`, only `num_probed` clips were looked at."""

    num_shards: int
    num_bytes: int = 0
    num_clips: int = 0
    seconds: float = 0.0
    """Scaled up to all clips where not all were looked at."""
    shapes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(width, height) in pixels to clips, as of `num_probed`."""
    fps: Counter[float] = field(default_factory=Counter)
    """Frames per second, to two decimals, to clips, as of `num_probed`."""
    num_captions: int = 0
    """Clips of `num_probed` that have a text."""
    num_probed: int = 0
    unreadable: list[str] = field(default_factory=list)
    """What could not be looked at, in sentences."""

    @property
    def complete(self) -> bool:
        return self.num_probed == self.num_clips


def contents(folder: ShardFolder) -> Contents:
    """Reads indexes of a curated folder; else the tars' headers, and some videos'.

    Raises `DataError` where an index or a shard is missing or unreadable; one video never does.
    """
    found = Contents(num_shards=len(folder.shards))
    if folder.manifest is not None:
        _from_indexes(folder, found)
    else:
        _from_tars(folder, found)
    return found


def packing(config: LoaderConfig, compression: Compression) -> dict[str, Any]:
    """`Catalogue.describe` for a curated folder, without reading a video."""
    return Catalogue(config, compression, "all").describe(max_packs=_MAX_PACKS)


def _from_indexes(folder: ShardFolder, found: Contents) -> None:
    assert folder.manifest is not None
    for shard in folder.manifest.shards:
        found.num_bytes += shard.num_bytes
        for row in read_index(folder.root / shard.index_path).to_pylist():
            found.num_clips += 1
            _count(found, row["width"], row["height"], row["fps"], row["duration_s"])
            found.num_captions += row["caption_bytes"] > 0


def _from_tars(folder: ShardFolder, found: Contents) -> None:
    samples: list[TarSample] = []
    size_of = sizes_below(folder.root)
    for shard in folder.shards:
        path = folder.root / shard
        try:
            found.num_bytes += size_of(shard)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        members, faults = list_tar(path)
        found.unreadable += [f"{shard}: {fault}" for fault in faults]
        samples += samples_of(shard, members)
    clips = [sample for sample in samples if sample.video is not None]
    found.num_clips = len(clips)
    for sample in evenly(clips, MAX_PROBED):
        assert sample.video is not None
        _, caption = described(folder.root, sample)
        found.num_captions += bool(caption)
        try:
            with VideoReader(read_member(folder.root, sample.shard, sample.video)) as reader:
                info = reader.info
        except MediaError as error:
            found.num_probed += 1
            found.unreadable.append(f"{sample.shard}: {sample.video.name}: {error}")
            continue
        _count(found, info.width, info.height, info.fps, info.duration_s)
    if found.num_probed:
        found.seconds *= found.num_clips / found.num_probed


def _count(found: Contents, width: int, height: int, fps: float, duration_s: float) -> None:
    found.num_probed += 1
    found.seconds += duration_s
    found.shapes[width, height] += 1
    found.fps[round(fps, 2)] += 1


def evenly(items: list[Any], count: int) -> list[Any]:
    """`count` of the items at equal distances, all where there are no more."""
    if len(items) <= count:
        return items
    return [items[i * len(items) // count] for i in range(count)]
