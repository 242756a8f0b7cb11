"""Lets megatron-energon open a folder of shards as it is, without `energon prepare`.

Energon wants, beside the tars, `NAME.tar.idx` (uint64 offsets of the samples and of the end) and a
folder `.nv-meta` with the shards' sample counts, the splits, how samples are read, and an SQLite
index of samples and their parts. The format is that of megatron-energon 7.4. Everything here
follows from the shard indexes, so equal shards give equal bytes.
"""

import json
import sqlite3
import uuid

import numpy as np

from common.storage import atomic_path, write_atomic
from common.store_path import Place
from dataloading.schema import Manifest, read_index

META_FOLDER = ".nv-meta"
ENERGON_VERSION = "7.4.1"
_TAR_BLOCK = 512
_NAMESPACE = uuid.UUID("5f4ef3a2-2f0c-5d8b-9f0b-3f6f8f9c6d11")
_TABLES = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER
);
CREATE TABLE sample_parts (
    tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
    content_byte_offset INTEGER, content_byte_size INTEGER
);
"""
_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq
    ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full
    ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


def write_energon(shards: Place, manifest: Manifest) -> None:
    """Writes `.nv-meta` and the offset files of all shards of the manifest.

    All samples belong to the split `train`; they are `CrudeWebdataset` samples with the parts
    `mp4` and `json`.
    """
    meta = shards / META_FOLDER
    paths = [shard.path for shard in manifest.shards]
    with atomic_path(meta / "index.sqlite") as temporary:
        database = sqlite3.connect(temporary)
        database.executescript(_TABLES)
        for number, shard in enumerate(manifest.shards):
            _add_shard(database, shards, shard.path, number)
        database.executescript(_INDEXES)
        database.commit()
        database.close()
    counts = {shard.path: shard.num_clips for shard in manifest.shards}
    info = {"energon_version": ENERGON_VERSION, "shard_counts": counts}
    digest = "".join(shard.sha256 for shard in manifest.shards)
    write_atomic(meta / "index.uuid", str(uuid.uuid5(_NAMESPACE, digest)).encode())
    write_atomic(meta / ".info.json", json.dumps(info, indent=2).encode())
    # Both files are JSON, which is YAML; names need no quoting rules of our own.
    split = {"split_parts": {"train": paths, "val": [], "test": []}, "exclude": []}
    write_atomic(meta / "split.yaml", json.dumps(split, indent=2).encode())
    dataset = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    write_atomic(meta / "dataset.yaml", json.dumps(dataset, indent=2).encode())


def _add_shard(database: sqlite3.Connection, shards: Place, path: str, number: int) -> None:
    index = read_index(shards / f"{path.removesuffix('.tar')}.index.arrow")
    keys = index.column("clip_id").to_pylist()
    video_at, video_size, json_at, json_size = (
        index.column(name).to_numpy()
        for name in ("video_offset", "video_bytes", "json_offset", "json_bytes")
    )
    # A sample runs from its first header to the padded end of its last member.
    begins = video_at - _TAR_BLOCK
    ends = json_at + -(-json_size // _TAR_BLOCK) * _TAR_BLOCK
    offsets = np.concatenate([begins, ends[-1:]]).astype("<u8")
    write_atomic(shards / f"{path}.idx", offsets.tobytes())
    sizes = ends - begins
    database.executemany(
        "INSERT INTO samples VALUES (?, ?, ?, ?, ?)",
        [(number, k, i, int(begins[i]), int(sizes[i])) for i, k in enumerate(keys)],
    )
    parts = []
    for i in range(len(keys)):
        parts.append((number, i, "mp4", int(video_at[i]), int(video_size[i])))
        parts.append((number, i, "json", int(json_at[i]), int(json_size[i])))
    database.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", parts)
