"""Gloo tier: a whole network over ranks against one process, outputs and all gradients."""

from typing import Any

import pytest

from models.dit import DiTConfig
from parallel.context import Comm
from tests.distributed.networks import PACKS, compare

SHAPE: dict[str, Any] = {"hidden_size": 48, "num_layers": 2, "num_heads": 4}
CONFIG = DiTConfig(**SHAPE, mlp_ratio=2.0)


@pytest.mark.parametrize("name", ["videos and an image", "shorter than the ranks", "one token"])
@pytest.mark.parametrize(
    ("ulysses", "ring", "comm"),
    [
        (1, 2, "a2a+p2p"),
        (2, 1, "a2a+p2p"),
        (1, 2, "a2a+all_gather"),
        (1, 4, "a2a+p2p"),
        (4, 1, "a2a+p2p"),
        (2, 2, "a2a+p2p"),
        (2, 2, "a2a+all_gather"),
    ],
)
def test_network_over_ranks_is_as_in_one_process(worlds, name, ulysses, ring, comm: Comm):
    results = worlds[ulysses * ring].run(compare, CONFIG, PACKS[name], ulysses, ring, [comm])
    worst = max(result.worst for result in results)
    print(f"{name}, ulysses={ulysses} ring={ring} {comm}: {worst:.1e}")
    assert worst <= 1e-12
    for result in results:
        # Self-attention alone sends; text is whole everywhere, so cross-attention does not.
        assert {layer for layer, _ in result.sent} == {"blocks.0", "blocks.1"}
        expected = {}
        if ulysses > 1:
            for kind in ("ulysses.qkv", "ulysses.out"):
                expected[kind] = expected[f"{kind}.backward"] = 2
        if ring > 1 and comm == "a2a+p2p":
            expected["ring.kv"] = expected["ring.kv.backward"] = 2 * (ring - 1)
            expected["ring.dkv.backward"] = 2 * ring
        elif ring > 1:
            for kind in ("gather.kv", "gather.kv.backward", "gather.dkv.backward"):
                expected[kind] = 2
        assert result.calls() == expected


def test_each_layer_may_go_over_the_ranks_in_its_own_way(world4):
    """One topology of 2 x 2, three layers: a ring of 4, heads over 4, and both."""
    config = DiTConfig(hidden_size=48, num_layers=3, num_heads=4, mlp_ratio=2.0)
    comms: list[Comm] = ["p2p", "a2a", "a2a+all_gather"]
    for result in world4.run(compare, config, PACKS["uneven"], 2, 2, comms):
        assert result.worst <= 1e-12
        forward = {key: calls for key, (calls, _) in result.sent.items() if "back" not in key[1]}
        assert forward == {
            ("blocks.0", "ring.kv"): 3,
            ("blocks.1", "ulysses.qkv"): 1,
            ("blocks.1", "ulysses.out"): 1,
            ("blocks.2", "ulysses.qkv"): 1,
            ("blocks.2", "gather.kv"): 1,
            ("blocks.2", "ulysses.out"): 1,
        }
