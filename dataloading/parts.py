"""Where every file of every sample lies in a folder of WebDataset tars.

`NAME.parts.arrow` beside each tar has a row per sample; `parts.json` in the folder lists the tars.
`vfm data index` writes them. A curated folder's own index says as much; where there is neither, the
tars' headers are read.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from common.errors import DataError
from common.storage import write_atomic
from common.store_path import Place
from dataloading.folder import (
    ShardFolder,
    TarSample,
    list_tar,
    open_folder,
    samples_of,
    sizes_below,
)
from dataloading.schema import read_index, read_table

PARTS_NAME = "parts.json"
PARTS_SUFFIX = ".parts.arrow"
FORMAT_VERSION = 1
_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("names", pa.list_(pa.string())),
        ("offsets", pa.list_(pa.int64())),
        ("sizes", pa.list_(pa.int64())),
    ]
)


SamplePlace = tuple[str, int, list[tuple[str, int, int]]]
"""A sample's key, the number of its shard, and (name, offset, size) of each part."""


@dataclass(frozen=True, kw_only=True)
class PartTable:
    """Samples by ordinal: shard by shard, in each in the tar's order.

    Attributes:
        shards: paths of the tars.
        shard_start: `int64 [num_shards + 1]`, first ordinal of each, and the end.
        keys: one for each sample.
        part_start: `int64 [n + 1]`, first part of each sample.
        name, offset, size: `int64 [num_parts]`, index into `names`, and where the content lies.
    """

    shards: list[Place]
    shard_start: np.ndarray
    keys: pa.ChunkedArray
    part_start: np.ndarray
    names: list[str]
    name: np.ndarray
    offset: np.ndarray
    size: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    def places(self, ordinals: np.ndarray) -> list[SamplePlace]:
        """Where the parts of these samples lie."""
        keys = self.keys.take(pa.array(ordinals)).to_pylist()
        shards = np.searchsorted(self.shard_start, ordinals, side="right") - 1
        first, end = self.part_start[ordinals], self.part_start[ordinals + 1]
        # All parts of all samples, end to end, and where each sample's begin in that.
        counts = end - first
        begins = np.concatenate([[0], np.cumsum(counts)])
        every = np.arange(begins[-1]) + np.repeat(first - begins[:-1], counts)
        names = [self.names[code] for code in self.name[every].tolist()]
        columns = (names, self.offset[every].tolist(), self.size[every].tolist())
        parts = list(zip(*columns, strict=True))
        cuts = begins.tolist()
        return [
            (key, shard, parts[a:b])
            for key, shard, a, b in zip(keys, shards.tolist(), cuts[:-1], cuts[1:], strict=True)
        ]

    def fingerprint(self) -> str:
        """Changes when any shard's samples, or the place of any part, do."""
        digest = hashlib.sha256(repr(self.names).encode())
        for array in (self.shard_start, self.name, self.offset, self.size):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    @staticmethod
    def open(path: Place) -> "PartTable":
        """Raises `DataError` naming the shards that are missing or not as the index says."""
        folder = open_folder(path)
        if (folder.root / PARTS_NAME).is_file():
            tables = _stored(folder)
        elif folder.manifest is not None:
            size_of = sizes_below(folder.root)
            tables = [_of_clips(folder, shard, size_of) for shard in folder.shards]
        else:
            tables = [_scanned(folder, shard)[0] for shard in folder.shards]
        whole = pa.concat_tables(tables)
        counts = [np.diff(chunk.offsets.to_numpy()) for chunk in whole["names"].chunks]
        coded = _flat(whole["names"]).dictionary_encode()
        return PartTable(
            shards=[folder.root / shard for shard in folder.shards],
            shard_start=np.cumsum([0, *(t.num_rows for t in tables)], dtype=np.int64),
            keys=whole["key"],
            part_start=np.concatenate([[0], np.cumsum(np.concatenate([*counts, []]))]).astype(
                np.int64
            ),
            names=coded.dictionary.to_pylist(),
            name=coded.indices.to_numpy().astype(np.int64),
            offset=_flat(whole["offsets"]).to_numpy(),
            size=_flat(whole["sizes"]).to_numpy(),
        )


def write_parts(folder: ShardFolder, samples: dict[str, list[TarSample]]) -> None:
    """Writes the index of a folder, from the samples of each shard."""
    listed = []
    size_of = sizes_below(folder.root)
    for shard in folder.shards:
        sink = pa.BufferOutputStream()
        table = _table(samples[shard])
        with pa.ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_table(table)
        write_atomic(folder.root / _index_path(shard), sink.getvalue().to_pybytes())
        num_bytes = size_of(shard)
        listed.append({"path": shard, "num_samples": table.num_rows, "num_bytes": num_bytes})
    about = {"format_version": FORMAT_VERSION, "shards": listed}
    write_atomic(folder.root / PARTS_NAME, (json.dumps(about, indent=1) + "\n").encode())


def scan(
    folder: ShardFolder, tick: Callable[[], None]
) -> tuple[dict[str, list[TarSample]], list[str]]:
    """The samples of each shard by its headers, and what is wrong with shards, in sentences."""
    found, faults = {}, []
    for shard in folder.shards:
        members, wrong = list_tar(folder.root / shard)
        found[shard] = list(samples_of(shard, members))
        faults += [f"{shard}: {fault}" for fault in wrong]
        tick()
    return found, faults


def _stored(folder: ShardFolder) -> list[pa.Table]:
    path = folder.root / PARTS_NAME
    try:
        raw = json.loads(path.read_bytes())
        known = {shard["path"]: shard for shard in raw["shards"]}
        if raw["format_version"] != FORMAT_VERSION:
            raise DataError(
                f"{path} has format {raw['format_version']}, this vfm reads {FORMAT_VERSION}; run "
                f"vfm data index {folder.path}"
            )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error}); run vfm data index again") from error
    faults = [f"{shard} is not in the index" for shard in folder.shards if shard not in known]
    faults += [f"{shard} is missing" for shard in known if shard not in folder.shards]
    size_of = sizes_below(folder.root)
    for shard in set(known) & set(folder.shards):
        num_bytes = size_of(shard)
        if num_bytes != known[shard]["num_bytes"]:
            said = known[shard]["num_bytes"]
            faults.append(f"{shard} has {num_bytes} bytes, the index says {said}")
    if faults:
        raise DataError(
            f"{folder.root}: {_some(sorted(faults))}. Copy the folder again, or run "
            f"vfm data index {folder.path} if this is meant"
        )
    return [_read(folder.root / _index_path(shard)) for shard in folder.shards]


def _read(path: Place) -> pa.Table:
    try:
        table = read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot read {path}: {error}; run vfm data index again") from error
    if table.schema != _SCHEMA:
        raise DataError(f"{path} is no index of parts; run vfm data index again")
    return table


def _of_clips(folder: ShardFolder, shard: str, size_of: Callable[[str], int]) -> pa.Table:
    assert folder.manifest is not None
    info = next(s for s in folder.manifest.shards if s.path == shard)
    path = folder.root / shard
    try:
        whole = size_of(shard) == info.num_bytes
    except OSError:
        whole = False
    if not whole:
        raise DataError(f"{path} is missing, or has not the {info.num_bytes} bytes of the manifest")
    rows = read_index(folder.root / info.index_path)
    columns = [
        rows[f"{part}_{what}"].to_numpy() for what in ("offset", "bytes") for part in _CLIP_PARTS
    ]
    pairs = np.stack(columns, axis=1).reshape(len(rows), 2, len(_CLIP_PARTS))
    return pa.table(
        {
            "key": rows["clip_id"],
            "names": [["mp4", "json"]] * len(rows),
            "offsets": pairs[:, 0].tolist(),
            "sizes": pairs[:, 1].tolist(),
        },
        schema=_SCHEMA,
    )


_CLIP_PARTS = ("video", "json")


def _scanned(folder: ShardFolder, shard: str) -> tuple[pa.Table, list[str]]:
    members, faults = list_tar(folder.root / shard)
    return _table(samples_of(shard, members)), faults


def _table(samples: Iterable[TarSample]) -> pa.Table:
    rows = list(samples)
    return pa.table(
        {
            "key": [s.key for s in rows],
            "names": [list(s.parts) for s in rows],
            "offsets": [[m.offset for m in s.parts.values()] for s in rows],
            "sizes": [[m.num_bytes for m in s.parts.values()] for s in rows],
        },
        schema=_SCHEMA,
    )


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([chunk.flatten() for chunk in column.chunks])


def _index_path(shard: str) -> str:
    return shard.removesuffix(".tar") + PARTS_SUFFIX


def _some(faults: list[str]) -> str:
    more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
    return "; ".join(faults[:5]) + more
