"""Wiring tier: where a rank stands, whom it talks to, and what is refused."""

import pytest

from common.errors import ConfigError
from parallel.topology import AXES, Topology


def test_from_torchrun():
    assert Topology.from_environment({}) == Topology()
    two = Topology.from_environment({"WORLD_SIZE": "2", "RANK": "1"})
    assert (two.dp, two.dp_rank) == (2, 1)
    eight = Topology.from_environment({"WORLD_SIZE": "8", "RANK": "7"}, tp=2, ring=2)
    assert (eight.dp, eight.dp_rank, eight.ring_rank) == (2, 1, 1)
    nodes = {"WORLD_SIZE": "32", "RANK": "9", "LOCAL_WORLD_SIZE": "8"}
    # Heads are exchanged within a machine, the ring goes between them.
    hybrid = Topology.from_environment(nodes, ulysses=8, ring=4)
    assert hybrid.ranks_of("ulysses") == tuple(range(8, 16))
    assert hybrid.ranks_of("ring") == (1, 9, 17, 25)


def test_ranks_count_fastest_along_tp():
    make = lambda rank: Topology(rank=rank, world_size=24, tp=2, ulysses=2, ring=3, dp=2)  # noqa: E731
    here = make(23)
    assert (here.ulysses_rank, here.ring_rank, here.dp_rank) == (1, 2, 1)
    assert (here.cp, here.cp_rank) == (6, 5)
    assert here.ranks_of("tp") == (22, 23)
    assert here.ranks_of("ulysses") == (21, 23)
    assert here.ranks_of("ring") == (15, 19, 23)
    assert here.ranks_of("cp") == (13, 15, 17, 19, 21, 23)
    assert here.ranks_of("dp") == (11, 23)
    assert here.ranks_of("dp_cp") == (1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23)
    for axis in AXES:
        groups = {make(rank).ranks_of(axis) for rank in range(24)}
        assert sorted(rank for group in groups for rank in group) == list(range(24))
    for rank in range(24):
        assert make(rank).ranks_of("cp")[make(rank).cp_rank] == rank
        assert make(rank).ranks_of("ring")[make(rank).ring_rank] == rank
        assert make(rank).ranks_of("dp")[make(rank).dp_rank] == rank


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"world_size": 4}, "dp=1 does not fill a world of 4 processes .*: set dp=4"),
        ({"world_size": 8, "tp": 2, "ring": 2}, "tp=2 x ulysses=1 x ring=2: set dp=2"),
        ({"world_size": 6, "ulysses": 4}, "start a multiple of 4 processes, or make tp, ulysses"),
        ({"rank": 4, "world_size": 4, "dp": 4}, "rank 4 does not lie in a world of 4"),
        ({"ring": 0}, "ring must be at least 1, got 0"),
        (
            {"world_size": 32, "tp": 2, "ulysses": 8, "ring": 2, "ranks_per_node": 8},
            "tp=2 x ulysses=8 groups 16 ranks, .* machines of 8: set ulysses=4 and make ring",
        ),
        (
            {"world_size": 32, "tp": 16, "dp": 2, "ranks_per_node": 8},
            "tp=16 x ulysses=1 groups 16 ranks, .* machines of 8: set tp to a divisor of 8",
        ),
    ],
)
def test_refused(wish, message):
    with pytest.raises(ConfigError, match=message):
        Topology(**wish)
