"""Gloo tier: a rank that dies, is late, or was given something else ends all others in an error.

Each world here is broken by its test; limits are far below the pool's own, so that the error must
come from the ranks that wait.
"""

import os
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from models.dit import DiTConfig
from models.pack import PackLayout
from models.stdit import STDiTConfig
from parallel.collectives import Channel, CollectiveError
from parallel.context import Comm, agree_on_pack
from parallel.groups import Groups
from parallel.layout import PackShare
from parallel.spatiotemporal import Halves
from parallel.topology import Topology
from parallel.traffic import Traffic
from tests.distributed.networks import TEXT_DIM, TOKEN_DIM, attentions, network
from tests.distributed.pool import Pool, WorldError

SHAPE: dict[str, Any] = {"hidden_size": 48, "num_layers": 2, "num_heads": 4}
TIMEOUT_S = 3.0


def whole_pack(grids: list[tuple[int, int, int]]) -> PackLayout:
    n = len(grids)
    return PackLayout.build(grids, [2] * n, torch.full((n,), 24.0))


def train_in_trouble(kind: str, comm: Comm, what: str, where: str) -> None:
    """A step of a network over all ranks, in which rank 1 meets with `what`.

    `where` is the name of the collective, in the block 1, at whose time it happens.
    """
    size, rank = dist.get_world_size(), dist.get_rank()
    config = STDiTConfig(**SHAPE) if kind == "stdit" else DiTConfig(**SHAPE)
    groups = Groups.make(Topology(rank=rank, world_size=size, ring=size), TIMEOUT_S)
    assert groups.cp is not None
    odd = rank == 1
    whole = whole_pack([(4, 3, 3), (4, 2, 2)] if odd and what == "pack" else [(4, 3, 3), (4, 3, 2)])
    traffic = StoppingTraffic(where if odd else "", what)
    if isinstance(config, STDiTConfig):
        share = Halves(whole, Channel(groups.cp, traffic)).start(config.of_network())
    else:
        share = PackShare.of(whole, size, rank)
    model = network(config, attentions(config, groups, traffic, [comm]))
    x = torch.zeros(share.num_tokens, TOKEN_DIM, dtype=torch.float64)
    text = torch.zeros(4, TEXT_DIM, dtype=torch.float64)
    model(x, torch.zeros(2, dtype=torch.float64), text, share).sum().backward()


class StoppingTraffic(Traffic):
    """Ends or halts its process when a collective in block 1 is about to be sent."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__()
        self.where, self.what = where, what

    def record(self, layer: str, name: str, num_bytes: int) -> None:
        if layer.startswith("blocks.1") and name == self.where:
            if self.what == "death":
                os._exit(3)
            time.sleep(2 * TIMEOUT_S)
        super().record(layer, name, num_bytes)


@pytest.fixture
def own() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    ("kind", "comm", "what", "where", "layer"),
    [
        ("dit", "a2a", "death", "ulysses.qkv.backward", "blocks.1"),
        # The next that the others wait for may be that of the keys.
        ("dit", "p2p", "death", "ring.dkv.backward", "blocks.1"),
        ("stdit", "p2p", "late", "switch", "blocks.1.temporal"),
    ],
)
def test_the_rank_the_layer_and_the_collective_are_named(own, kind, comm: Comm, what, where, layer):
    begin = time.monotonic()
    named = where.replace("dkv", "d?kv")
    message = rf"rank 0: {named} of layer {layer} over ranks \[0, 1\] failed; a peer stopped or is"
    with pytest.raises(WorldError, match=message):
        own.run(train_in_trouble, kind, comm, what, where, timeout_s=50.0)
    # From the start of the processes on.
    assert time.monotonic() - begin < 60.0


def test_different_packs_end_in_an_error(own):
    """Without verification, too: by the backend's own checks, or by the limit of time."""
    with pytest.raises(WorldError, match=r"rank \d: (?s:.)*(of layer blocks.0 over|process died)"):
        own.run(train_in_trouble, "dit", "p2p", "pack", "", timeout_s=50.0)


def agree(what: str) -> str:
    size, rank = dist.get_world_size(), dist.get_rank()
    odd = rank == 1
    grids = [(2, 3, 3), (1, 2, 2)]
    if odd and what == "order":
        grids = grids[::-1]
    elif odd and what == "size":
        grids = [(2, 3, 3)]
    share = PackShare.of(whole_pack(grids), size, rank)
    groups = Groups.make(Topology(rank=rank, world_size=size, ring=size), 60.0)
    assert groups.cp is not None
    traffic = Traffic()
    try:
        agree_on_pack(share, Channel(groups.cp, traffic))
    except CollectiveError as error:
        return str(error)
    assert traffic.by_name() == {"agree_on_pack": (1, 4 * 8 * (size - 1))}
    return ""


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nothing", ""),
        ("order", r"hold different packs \(by checksum\)"),
        ("size", r"numbers of samples \[2, 1\], numbers of tokens \[22, 18\]"),
    ],
)
def test_a_pack_is_agreed_on_once(world2, what, message):
    for told in world2.run(agree, what):
        assert bool(told) == bool(message)
        assert re.search(message, told), told
