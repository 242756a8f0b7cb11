"""Wiring tier. Whole samples: every part as it is, the same order for all, exact resume, damage."""

import copy
import io
import itertools
import json
import random
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from common.errors import ConfigError, DataError
from dataloading.indexing import index_folder
from dataloading.samples import SampleBatch, SampleLoader
from tests.dataloading.folder import Clip, make_folder

COUNTS = [5, 11, 1, 8, 4]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """29 samples of two or three parts, in five tars of two sub-folders."""
    rnd = random.Random(0)
    number = 0
    for shard, count in enumerate(COUNTS):
        path = tmp_path / f"part{shard % 2}" / f"s{shard}.tar"
        path.parent.mkdir(exist_ok=True)
        with tarfile.open(path, "w") as tar:
            for _ in range(count):
                add(tar, f"deep/{number:03d}.mp4", rnd.randbytes(rnd.randrange(3000)))
                add(tar, f"deep/{number:03d}.json", json.dumps({"n": number}).encode())
                if number % 3:
                    add(tar, f"deep/{number:03d}.latent.bin", rnd.randbytes(7))
                number += 1
    return tmp_path


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def contents(folder: Path) -> dict[str, dict[str, bytes]]:
    """All samples, by the standard library alone."""
    found: dict[str, dict[str, bytes]] = {}
    for path in sorted(folder.rglob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                key, _, name = member.name.partition(".")
                found.setdefault(key, {})[name] = file.read()
    return found


def keys(batches: Iterable[SampleBatch]) -> list[list[str]]:
    return [[sample["__key__"] for sample in batch] for batch in batches]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("num_threads", [0, 3])
def test_samples_are_what_the_tars_hold(folder: Path, indexed: bool, num_threads: int) -> None:
    expected = contents(folder)
    if indexed:
        about = index_folder(folder)
        assert (about.num_shards, about.num_samples, about.faults) == (5, 29, [])
    got = {}
    for batch in SampleLoader(folder, 4, num_threads=num_threads):
        for sample in batch:
            got[sample.pop("__key__")] = sample
    assert got == expected
    only = SampleLoader(folder, 4, parts=["json"], shuffle=False)
    assert [set(s) for s in next(iter(only))] == [{"__key__", "json"}] * 4
    assert list(itertools.chain(*keys(only))) == list(expected)


def test_a_curated_folder_needs_no_other_index(tmp_path: Path) -> None:
    path = make_folder(tmp_path, {"a": [Clip(clip_id="ant", num_frames=3)]})
    (batch,) = SampleLoader(path)
    (sample,) = batch
    assert sample["__key__"] == "ant"
    assert json.loads(sample["json"]) == {"caption": "a film of ant"}
    assert sample["mp4"][4:8] == b"ftyp"


def test_order_is_one_for_all_threads_ranks_and_workers(folder: Path) -> None:
    def loader(**changes: Any) -> SampleLoader:
        return SampleLoader(folder, 3, shuffle_shards=2, seed=4, **changes)

    whole = loader()
    first, second = keys(whole), keys(whole)
    assert len(first) == len(whole) == 10
    assert first != second
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second))
    assert keys(loader(num_threads=3)) == first
    assert keys(DataLoader(loader(), batch_size=None, num_workers=2)) == first
    shares = [keys(loader(rank=r, num_ranks=3)) for r in range(3)]
    assert [batch for turn in zip(*shares, strict=True) for batch in turn] == first[:9]


def test_state_goes_on_with_any_ranks_workers_and_threads(folder: Path) -> None:
    def loader(**changes: Any) -> SampleLoader:
        return SampleLoader(folder, 2, shuffle_shards=2, **changes)

    one = loader()
    whole = keys(one) + keys(one)
    per_epoch = len(one)
    pair = [loader(rank=r, num_ranks=2, num_threads=2) for r in range(2)]
    taken = [list(itertools.islice(source, 2)) for source in pair]
    assert [b for turn in zip(*map(keys, taken), strict=True) for b in turn] == whole[:4]
    assert pair[0].state_dict() == pair[1].state_dict() == taken[0][-1].state
    resumed = loader()
    resumed.load_state_dict(json.loads(json.dumps(pair[0].state_dict())))
    batches = list(DataLoader(resumed, batch_size=None, num_workers=2))
    assert keys(batches) == whole[4:per_epoch]
    resumed.load_state_dict(batches[-1].state)
    assert keys(resumed) == [], "the epoch was over"
    assert keys(resumed) == whole[per_epoch:]
    for changes, words in ((dict(seed=1), "seed was 0"), (dict(shuffle=False), "shuffle was")):
        with pytest.raises(DataError, match=words):
            loader(**changes).load_state_dict(resumed.state_dict())


def test_without_batches_samples_come_one_by_one_in_the_same_order(folder: Path) -> None:
    def loader(**changes: Any) -> SampleLoader:
        return SampleLoader(folder, None, shuffle_shards=2, seed=4, **changes)

    def names(samples: Iterable[dict[str, Any]]) -> list[str]:
        return [sample["__key__"] for sample in samples]

    batches = SampleLoader(folder, 3, shuffle_shards=2, seed=4)
    whole = list(itertools.chain(*keys(batches)))
    one = loader()
    assert len(one) == 29
    assert names(one) == whole
    assert names(loader(num_threads=2)) == whole
    shares = [loader(rank=r, num_ranks=3, num_threads=r) for r in range(3)]
    taken = [names(share) for share in shares]
    assert [key for turn in zip(*taken, strict=True) for key in turn] == whole[:27]
    three = loader()
    assert names(itertools.islice(three, 7)) == whole[:7]
    resumed = loader(num_threads=2)
    resumed.load_state_dict(json.loads(json.dumps(three.state_dict())))
    assert names(resumed) == whole[7:]
    with pytest.raises(DataError, match="batch_size was None"):
        batches.load_state_dict(three.state_dict())


def test_a_cut_shard_is_named_and_a_sample_cut_later_left_out(folder: Path) -> None:
    index_folder(folder)
    loader = SampleLoader(folder, 4, shuffle=False, num_threads=1)
    path = folder / "part1" / "s3.tar"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    got = list(itertools.chain(*keys(loader)))
    assert 0 < len(loader.skipped) == 29 - len(got)
    single = copied(loader, batch_size=None, num_threads=0)
    assert [sample["__key__"] for sample in single] == got
    assert single.skipped == loader.skipped
    assert all("s3.tar ends in its" in why for why in loader.skipped.values())
    with pytest.raises(DataError, match="more than max_bad_samples \\(0\\): deep/"):
        list(copied(loader, max_bad_samples=0))
    with pytest.raises(DataError, match=r"s3.tar has \d+ bytes, the index says \d+"):
        SampleLoader(folder)
    path.unlink()
    with pytest.raises(DataError, match="part1/s3.tar is missing"):
        SampleLoader(folder)
    with pytest.raises(DataError, match=r"cannot read .*s3.tar: No such file"):
        list(copy.copy(loader))


def copied(loader: SampleLoader, **changes: Any) -> SampleLoader:
    """A copy that opened the folder while it was whole."""
    other = copy.copy(loader)
    other.__dict__.update(changes)
    other.skipped = {}
    return other


def test_what_cannot_be_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="batch_size=0"):
        SampleLoader(folder, 0)
    with pytest.raises(ConfigError, match="rank is 2"):
        SampleLoader(folder, rank=2, num_ranks=2)
    with pytest.raises(DataError, match="no samples with the parts"):
        SampleLoader(folder, parts=["jpg"])
