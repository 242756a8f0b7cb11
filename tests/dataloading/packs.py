"""A loader for tests, and what its batches are compared by."""

import hashlib
import itertools
from pathlib import Path

from dataloading.batch import Batch
from dataloading.config import Compression, LoaderConfig
from dataloading.loader import PackedLoader


def loader(folder: Path, *, split: str = "train", rank: int = 0, ranks: int = 1, **changes):
    values = dict(
        path=str(folder),
        token_budget=30,
        num_frames=[1, 5, 9],
        size=[32, 32],
        seed=5,
        pool_size=6,
        shuffle_shards=2,
    )
    config = LoaderConfig(**{**values, **changes})
    return PackedLoader(config, Compression(), split=split, dp_rank=rank, dp_size=ranks)


def digest(batch: Batch) -> str:
    """Everything in the batch, down to the last pixel."""
    total = hashlib.sha256(repr((batch.sample_ids, batch.captions, batch.pack_index)).encode())
    assert batch.frames is not None
    assert batch.start_s is not None
    for tensor in (batch.grid, batch.cu_seqlens, batch.fps, batch.start_s, *batch.frames):
        total.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


def take(source: PackedLoader, count: int) -> list[str]:
    with source:
        return [digest(batch) for batch in itertools.islice(source, count)]
