"""Gloo tier: each collective alone, with values that tell their rank, and in trouble."""

import os
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from parallel.collectives import Channel, all_to_all
from parallel.groups import Groups
from parallel.topology import AXES, Topology
from parallel.traffic import Traffic
from tests.distributed.pool import Pool, WorldError


def channel_of_world(timeout_s: float = 60.0) -> Channel:
    size = dist.get_world_size()
    groups = Groups.make(Topology(rank=dist.get_rank(), world_size=size, ring=size), timeout_s)
    assert groups.ring is not None
    return Channel(groups.ring, Traffic(), "blocks.3")


def filled(rank: int, to: int) -> torch.Tensor:
    """What `rank` sends `to`: as many elements as neither would guess, none to the next rank."""
    n = 0 if to == rank + 1 else rank + 2 * to
    return torch.full((n,), 10.0 * rank + to)


def check_all_to_all() -> None:
    channel = channel_of_world()
    rank, size = channel.rank, channel.size
    sent = [filled(rank, to) for to in range(size)]
    came = [filled(source, rank) for source in range(size)]
    x = torch.cat(sent).requires_grad_()
    splits_in, splits_out = [len(t) for t in sent], [len(t) for t in came]
    out = all_to_all(x, channel, splits_in, splits_out, "swap")
    assert torch.equal(out, torch.cat(came))
    # The gradient of what came is sent back to where it came from.
    (grad,) = torch.autograd.grad(out, x, grad_outputs=out * 2)
    assert torch.equal(grad, x.detach() * 2)
    # An expanded gradient, as that of a sum, is no dense memory.
    (ones,) = torch.autograd.grad(all_to_all(x, channel, splits_in, splits_out, "swap").sum(), x)
    assert torch.equal(ones, torch.ones_like(x))
    assert channel.traffic.by_name() == {
        "swap": (2, 2 * 4 * sum(len(t) for to, t in enumerate(sent) if to != rank)),
        "swap.backward": (2, 2 * 4 * sum(len(t) for at, t in enumerate(came) if at != rank)),
    }


def check_pass_on() -> None:
    channel = channel_of_world()
    rank, size = channel.rank, channel.size
    x = torch.full((rank,), float(rank))
    seen = []
    for step in range(size):
        x, arrived = channel.pass_on(x, (rank - step - 1) % size, "pass")
        arrived()
        seen.append(x.tolist())
    assert seen == [[float(p)] * p for p in ((rank - step - 1) % size for step in range(size))]
    assert channel.traffic.sent["blocks.3", "pass"].calls == size
    assert channel.traffic.sent["blocks.3", "pass"].num_bytes == 4 * sum(range(size))
    channel.traffic.clear()
    assert channel.traffic.by_name() == {}


def check_all_gather() -> None:
    channel = channel_of_world()
    parts = channel.all_gather(
        torch.full((channel.rank, 2), float(channel.rank)),
        [2 * r for r in range(channel.size)],
        "g",
    )
    assert [p.tolist() for p in parts] == [[float(r)] * (2 * r) for r in range(channel.size)]
    sent = 2 * channel.rank * 4 * (channel.size - 1)
    assert channel.traffic.by_name() == {"g": (1, sent)}


def check_groups(tp: int, ulysses: int, ring: int) -> None:
    topology = Topology(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        tp=tp,
        ulysses=ulysses,
        ring=ring,
        dp=dist.get_world_size() // (tp * ulysses * ring),
    )
    groups = Groups.make(topology, 60.0)
    for axis in AXES:
        ranks, group = topology.ranks_of(axis), getattr(groups, axis)
        if len(ranks) == 1:
            assert group is None
            continue
        total = torch.tensor([2**topology.rank])
        dist.all_reduce(total, group=group)
        assert int(total) == sum(2**r for r in ranks)
        assert dist.get_rank(group) == ranks.index(topology.rank)


@pytest.mark.parametrize("check", [check_all_to_all, check_pass_on, check_all_gather])
def test_alone(worlds, check):
    for pool in worlds.values():
        pool.run(check)


@pytest.mark.parametrize("sizes", [(1, 1, 4), (1, 4, 1), (1, 2, 2), (2, 1, 2), (2, 1, 1)])
def test_groups_hold_the_ranks_of_the_topology(world4, sizes):
    world4.run(check_groups, *sizes)


def late_peer() -> None:
    channel = channel_of_world(timeout_s=1.0)
    if channel.rank == 1:
        time.sleep(2.0)
        return
    channel.all_to_all(torch.zeros(4), [2, 2], [2, 2], "swap")


def dead_peer(collective: str) -> None:
    channel = channel_of_world()
    dist.barrier()
    if channel.rank == 1:
        # Dies once the other waits for it.
        time.sleep(0.5)
        os._exit(3)
    match collective:
        case "swap":
            channel.all_to_all(torch.zeros(4), [2, 2], [2, 2], "swap")
        case "pass":
            channel.pass_on(torch.zeros(4), 4, "pass")[1]()
        case _:
            channel.all_gather(torch.zeros(4), [4, 4], "gather")


@pytest.fixture(scope="module")
def own() -> Iterator[Pool]:
    """A world that may be broken."""
    pool = Pool(2)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    ("function", "args", "told_by", "collective"),
    [
        (late_peer, (), 0, "swap"),
        (dead_peer, ("swap",), 0, "swap"),
        (dead_peer, ("pass",), 0, "pass"),
        (dead_peer, ("gather",), 0, "gather"),
    ],
)
def test_trouble_is_told_in_time(own, function, args, told_by, collective):
    # A limit far below the pool's own: the error must come from the rank that waits.
    message = rf"rank {told_by}: {collective} of layer blocks.3 over ranks \[0, 1\] failed"
    with pytest.raises(WorldError, match=message):
        own.run(function, *args, timeout_s=20.0)
