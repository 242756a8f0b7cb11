"""How each library is given the same samples, and asked for them, in `benchmarks.loader`.

A subject has `prepare(shards, scratch)`, which is not timed, and `read(...)`, which yields samples
as (json, mp4, bin), any buffers, in a process of its own. The libraries are optional: whatever
cannot be imported is said in the table.
"""

import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

BATCH = 32
Parts = tuple[Any, Any, Any]
PARTS = ("json", "mp4", "bin")


def as_they_are(shards: Path, scratch: Path) -> Path:
    return shards


@dataclass(frozen=True, kw_only=True)
class Subject:
    read: Callable[[Path, int], Iterable[Parts]]
    """(folder of the prepared data, workers)."""
    prepare: Callable[[Path, Path], Path] = as_they_are
    """(folder of tars, empty folder) to what `read` takes."""
    workers: bool = True
    """Whether it has worker processes."""


def index_vfm(shards: Path, scratch: Path) -> Path:
    from dataloading.indexing import index_folder

    index_folder(shards)
    return shards


def read_vfm(folder: Path, workers: int) -> Iterator[Parts]:
    """Its own workers are threads. Like litdata, it has no batches in one process."""
    from dataloading.samples import SampleLoader

    batch_size = BATCH if workers else None
    loader = SampleLoader(folder, batch_size, shuffle=False, num_threads=workers)
    yield from _parts(loader if workers else [loader])


def read_vfm_processes(folder: Path, workers: int) -> Iterator[Parts]:
    from torch.utils.data import DataLoader

    from dataloading.samples import SampleLoader

    loader = SampleLoader(folder, BATCH, shuffle=False)
    yield from _parts(DataLoader(loader, batch_size=None, num_workers=workers))


def _parts(batches: Iterable[Any]) -> Iterator[Parts]:
    for batch in batches:
        for sample in batch:
            yield sample["json"], sample["mp4"], sample["bin"]


def read_floor(folder: Path, workers: int) -> Iterator[Parts]:
    """The least there is to do: a list of places, and a read at each."""
    import numpy as np

    from dataloading.parts import PartTable

    table = PartTable.open(folder)
    files = [os.open(str(path), os.O_RDONLY) for path in table.shards]
    for _, shard, parts in table.places(np.arange(len(table))):
        found = {name: os.pread(files[shard], size, offset) for name, offset, size in parts}
        yield found["json"], found["mp4"], found["bin"]
    for file in files:
        os.close(file)


def read_webdataset(folder: Path, workers: int) -> Iterator[Parts]:
    from torch.utils.data import DataLoader
    from webdataset.compat import WebDataset

    paths = [str(path) for path in sorted(folder.glob("*.tar"))]
    loader: Any = WebDataset(paths, shardshuffle=False).batched(BATCH, collation_fn=list)
    if workers:
        loader = DataLoader(loader, batch_size=None, num_workers=workers)
    for batch in loader:
        for sample in batch:
            yield sample["json"], sample["mp4"], sample["bin"]


def prepare_energon(shards: Path, scratch: Path) -> Path:
    for path in sorted(shards.glob("*.tar")):
        (scratch / path.name).symlink_to(path)
    command = ["-c", "from megatron.energon.cli.main import main; main()", "prepare", str(scratch)]
    options = ["--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
    made = subprocess.run(
        [sys.executable, *command, *options], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise ImportError(f"energon prepare failed: {made.stderr[-300:]}")
    return scratch


def energon_dataset(folder: Path, rank: int, ranks: int, workers: int, encoder: Any) -> Any:
    import megatron.energon as energon

    return energon.get_train_dataset(
        str(folder),
        worker_config=energon.WorkerConfig(rank=rank, world_size=ranks, num_workers=workers),
        batch_size=BATCH if encoder.packing is None else 1,
        packing_buffer_size=encoder.packing,
        shuffle_buffer_size=None,
        max_samples_per_sequence=100,
        task_encoder=encoder,
        repeat=False,
    )


def energon_encoder(packing: int | None) -> Any:
    """Raw parts; with `packing`, first-fit-decreasing on buffers of so many samples."""
    import json

    import megatron.energon as energon

    @energon.stateless
    def cook(sample: Any) -> Any:
        return sample

    class Encoder(energon.DefaultTaskEncoder):  # type: ignore[name-defined]
        cookers = (energon.Cooker(cook),)
        decoder = None
        packing: int | None = None

        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            packs: list[list[Any]] = []
            room: list[int] = []
            length = {id(s): json.loads(s["json"])["tokens"] for s in samples}
            for sample in sorted(samples, key=lambda s: -length[id(s)]):
                size = length[id(sample)]
                at = next((i for i, left in enumerate(room) if size <= left), None)
                if at is None:
                    packs.append([])
                    room.append(PACK_TOKENS)
                    at = -1
                packs[at].append(sample)
                room[at] -= size
            return packs

        @energon.stateless
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return [sample["__key__"] for sample in samples]

        def batch(self, samples: list[Any]) -> Any:
            return samples

        def encode_batch(self, batch: Any) -> Any:
            return batch

    encoder = Encoder()
    encoder.packing = packing
    return encoder


PACK_TOKENS = 2048


def read_energon(folder: Path, workers: int) -> Iterator[Parts]:
    import megatron.energon as energon

    dataset = energon_dataset(folder, 0, 1, workers, energon_encoder(None))
    for batch in energon.get_loader(dataset):
        for sample in batch:
            yield sample["json"], sample["mp4"], sample["bin"]


def _tar_samples(shards: Path) -> Iterator[tuple[int, dict[str, bytes]]]:
    from dataloading.samples import SampleLoader

    number = 0
    for batch in SampleLoader(shards, shuffle=False):
        for sample in batch:
            yield number, {name: sample[name] for name in PARTS}
            number += 1


def prepare_litdata(shards: Path, scratch: Path) -> Path:
    from litdata.streaming.cache import Cache

    cache = Cache(str(scratch), chunk_bytes="64MB")
    for number, sample in _tar_samples(shards):
        cache[number] = sample
    cache.done()
    cache.merge()
    return scratch


def _owned(batch: list[dict[str, Any]]) -> list[dict[str, bytes]]:
    # Between processes its memoryviews cannot travel.
    return [{name: bytes(sample[name]) for name in PARTS} for sample in batch]


def read_litdata(folder: Path, workers: int) -> Iterator[Parts]:
    from litdata import StreamingDataLoader, StreamingDataset

    loader: Iterable[Any] = StreamingDataset(str(folder), shuffle=False)
    if workers:
        batches = StreamingDataLoader(
            loader, batch_size=BATCH, num_workers=workers, collate_fn=_owned
        )
        loader = (sample for batch in batches for sample in batch)
    for sample in loader:
        yield sample["json"], sample["mp4"], sample["bin"]


def _without_torchvision() -> None:
    """Lets `streaming` be imported where torchvision is absent: it asks for two of its names, for
    sets of pictures, which nobody reads here."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return
    for name, held in (
        ("torchvision", {}),
        ("torchvision.datasets", {"VisionDataset": object}),
        ("torchvision.transforms", {}),
        ("torchvision.transforms.functional", {"to_tensor": None}),
    ):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
        vars(sys.modules[name]).update(held)


def prepare_mosaic(shards: Path, scratch: Path) -> Path:
    _without_torchvision()
    from streaming import MDSWriter

    with MDSWriter(out=str(scratch), columns=dict.fromkeys(PARTS, "bytes")) as out:
        for _, sample in _tar_samples(shards):
            out.write(sample)
    return scratch


def read_mosaic(folder: Path, workers: int) -> Iterator[Parts]:
    _without_torchvision()
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    loader: Iterable[Any] = StreamingDataset(local=str(folder), batch_size=BATCH, shuffle=False)
    if workers:
        batches = DataLoader(
            loader,  # type: ignore[arg-type]
            batch_size=BATCH,
            num_workers=workers,
            collate_fn=list,
        )
        loader = (sample for batch in batches for sample in batch)
    for sample in loader:
        yield sample["json"], sample["mp4"], sample["bin"]


SUBJECTS = {
    "vfm": Subject(prepare=index_vfm, read=read_vfm),
    "vfm, under DataLoader": Subject(read=read_vfm_processes),
    "index and pread": Subject(read=read_floor, workers=False),
    "webdataset": Subject(read=read_webdataset),
    "megatron-energon": Subject(prepare=prepare_energon, read=read_energon),
    "litdata": Subject(prepare=prepare_litdata, read=read_litdata),
    "mosaicml-streaming": Subject(prepare=prepare_mosaic, read=read_mosaic),
}
