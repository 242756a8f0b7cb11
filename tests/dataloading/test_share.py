"""Wiring tier: ranks of a group as threads. Gloo is in `tests/distributed/test_share.py`."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigError, DataError
from dataloading.config import Compression, LoaderConfig
from dataloading.loader import PackedLoader
from dataloading.share import owners
from tests.dataloading.folder import Clip, make_folder, video_bytes
from tests.dataloading.test_loader import digest


class ThreadPeers:
    """`size` ranks of one process, one thread each."""

    def __init__(self, rank: int, size: int, board: list[bytes], barrier: threading.Barrier):
        self.rank, self.size, self._board, self._barrier = rank, size, board, barrier

    def all_gather(self, part: bytes) -> list[bytes]:
        self._board[self.rank] = part
        self._barrier.wait(20)
        found = list(self._board)
        self._barrier.wait(20)
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good clips of several lengths, and three that fail in other ways."""
    path = tmp_path_factory.mktemp("share")
    whole = video_bytes(Clip(clip_id="whole", num_frames=24), path)
    clips = [
        *(Clip(clip_id=f"c{i}", num_frames=20 + 3 * i) for i in range(6)),
        Clip(clip_id="empty", num_frames=24, video=b""),
        Clip(clip_id="shape", num_frames=24, width=32, video=whole),
        Clip(clip_id="mute", num_frames=24, meta=b'{"caption": null}'),
    ]
    return make_folder(path, {"a": clips[::2], "b": clips[1::2]})


def config(folder: Path, **changes: Any) -> LoaderConfig:
    values = dict(path=str(folder), token_budget=40, num_frames=[5, 9], size=[32, 32], pool_size=4)
    return LoaderConfig(**{**values, **changes})


def alone(folder: Path, count: int, **changes: Any) -> tuple[list[str], dict[str, str]]:
    with PackedLoader(config(folder, **changes), Compression()) as source:
        return [digest(b) for b in itertools.islice(source, count)], source.skipped


def together(folder: Path, size: int, count: int, share: str, **changes: Any) -> list[Any]:
    """What each rank of a group of `size` gets and skips, or the error that it ends with."""
    board, barrier = [b""] * size, threading.Barrier(size)

    def run(rank: int) -> Any:
        source = PackedLoader(
            config(folder, **changes),
            Compression(),
            peers=ThreadPeers(rank, size, board, barrier),
            share=share,
            verify_packs=True,
        )
        with source:
            try:
                return [digest(b) for b in itertools.islice(source, count)], source.skipped
            except DataError as error:
                return str(error)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


@pytest.mark.parametrize("share", ["compressed", "decoded"])
@pytest.mark.parametrize("size", [2, 3])
def test_all_ranks_have_what_one_process_has(folder: Path, size: int, share: str) -> None:
    expected = alone(folder, 12)
    assert len(expected[1]) == 3
    assert together(folder, size, 12, share) == [expected] * size


def test_substitutes_are_agreed_on(folder: Path) -> None:
    # Packs of one clip, of which a third fails.
    expected = alone(folder, 14, token_budget=12, num_frames=[9])
    assert together(folder, 2, 14, "compressed", token_budget=12, num_frames=[9]) == [expected] * 2


def test_too_many_bad_clips_and_a_lost_storage_end_all_ranks(folder: Path, tmp_path: Path) -> None:
    ends = together(folder, 2, 40, "compressed", max_bad_clips=1)
    assert ends[0] == ends[1]
    assert "more than max_bad_clips (1)" in ends[0]
    lost = make_folder(tmp_path, {"a": [Clip(clip_id="ant"), Clip(clip_id="bee")]})
    board, barrier = [b""] * 2, threading.Barrier(2)
    sources = [
        PackedLoader(config(lost), Compression(), peers=ThreadPeers(rank, 2, board, barrier))
        for rank in range(2)
    ]
    (lost / "shards" / "a.tar").unlink()

    def end(source: PackedLoader) -> str:
        with pytest.raises(DataError) as error:
            next(source)
        return str(error.value)

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(end, sources))
    assert said[0] == said[1]
    assert "cannot read" in said[0]
    assert "of the group" in said[0]


def test_packs_that_differ_are_found(folder: Path) -> None:
    board, barrier = [b""] * 2, threading.Barrier(2)

    def end(rank: int) -> str:
        source = PackedLoader(
            config(folder), Compression(), verify_packs=True,
            peers=ThreadPeers(rank, 2, board, barrier),
        )  # fmt: skip
        with source:
            batch = next(source)
            assert batch.frames is not None
            assert source._sharing is not None
            if rank == 1:
                batch.frames[0] = torch.zeros_like(batch.frames[0])
            with pytest.raises(DataError) as error:
                source._sharing.verify(batch)
        return str(error.value)

    with ThreadPoolExecutor(2) as pool:
        assert all("pack 0 differs" in s and "ranks [1]" in s for s in pool.map(end, range(2)))


def test_an_unknown_form_is_refused(folder: Path) -> None:
    peers = ThreadPeers(0, 1, [b""], threading.Barrier(1))
    with pytest.raises(ConfigError, match="share is 'zip'"):
        next(PackedLoader(config(folder), Compression(), peers=peers, share="zip"))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 10**6), max_size=40), st.integers(1, 9))
def test_parts_are_of_even_bytes(num_bytes: list[int], size: int) -> None:
    load = [0] * size
    for n, owner in zip(num_bytes, owners(num_bytes, size), strict=True):
        load[owner] += n
    assert max(load) <= sum(num_bytes) / size + max(num_bytes, default=0)
    assert max(load) - min(load) <= max(num_bytes, default=0)
