"""Gloo tier: a group of four ranks (TP2 x CP2) shares the packs of a folder."""

import hashlib
import os
from pathlib import Path

import pytest
import torch.distributed as dist

from dataloading.config import Compression, LoaderConfig
from dataloading.loader import PackedLoader
from parallel.collectives import Channel
from parallel.peers import BytePeers
from parallel.traffic import Traffic
from tests.dataloading.folder import Clip, make_folder
from tests.distributed.pool import Pool

Report = tuple[list[str], list[tuple[str, int, int]], dict[str, tuple[int, int]], list[int]]


class Recorded(BytePeers):
    """Keeps the length of this rank's part of each exchange."""

    def __init__(self, traffic: Traffic) -> None:
        group = dist.group.WORLD
        assert group is not None
        super().__init__(Channel(group, traffic, "loader"))
        self.lengths: list[int] = []

    def all_gather(self, part: bytes) -> list[bytes]:
        parts = super().all_gather(part)
        assert parts[self.rank] == part
        self.lengths.append(len(part))
        return parts


def packs(folder: str, share: str | None) -> Report:
    """Digests of the packs of validation, reads of tars, (calls, bytes) sent, lengths of parts."""
    reads: list[tuple[str, int, int]] = []
    pread = os.pread

    def counted(handle: int, size: int, offset: int) -> bytes:
        name = str(Path(f"/proc/self/fd/{handle}").readlink())
        if name.endswith(".tar"):
            reads.append((name, size, offset))
        return pread(handle, size, offset)

    traffic = Traffic()
    peers = Recorded(traffic) if share else None
    config = LoaderConfig(path=folder, token_budget=60, num_frames=[5], size=[32, 32])
    source = PackedLoader(
        config, Compression(), split="val", peers=peers, share=share or "compressed"
    )
    os.pread = counted  # type: ignore[assignment]
    try:
        with source:
            digests = [
                hashlib.sha256(
                    repr((b.sample_ids, b.captions)).encode()
                    + b"".join(f.numpy().tobytes() for f in b.frames or [])
                ).hexdigest()
                for b in source
            ]
    finally:
        os.pread = pread
    return digests, reads, traffic.by_name(), peers.lengths if peers else []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    clips = [Clip(clip_id=f"c{i:02d}", num_frames=16 + i % 9) for i in range(26)]
    path = make_folder(tmp_path_factory.mktemp("share"), {"a": clips[::2], "b": clips[1::2]})
    return str(path)


@pytest.mark.parametrize("share", ["compressed", "decoded"])
def test_each_byte_is_read_once_and_every_rank_has_every_pack(
    world4: Pool, folder: str, share: str
) -> None:
    digests, alone, _, _ = packs(folder, None)
    reports = world4.run(packs, folder, share)
    assert len(digests) > 3
    assert all(report[0] == digests for report in reports)
    # Counted at the store: the group's reads are those of one process, each of them once.
    together = [read for report in reports for read in report[1]]
    assert len(together) == len(set(together)) == len(set(alone))
    assert set(together) == set(alone)
    loads = [sum(size for _, size, _ in report[1]) for report in reports]
    assert max(loads) < 1.5 * sum(loads) / 4
    for _, _, sent, lengths in reports:
        assert len(lengths) == len(digests)
        assert sent == {
            "sizes": (len(digests), 3 * 8 * len(digests)),
            "parts": (len(digests), 3 * sum(lengths)),
        }
    if share == "compressed":
        # What travels is what was read, and a little said of each sample.
        assert sum(sum(report[3]) for report in reports) < 1.1 * sum(loads)
    assert Path(together[0][0]).name in ("a.tar", "b.tar")
