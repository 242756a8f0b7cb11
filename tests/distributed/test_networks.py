"""Gloo tier: every network, over the ranks in every way, on packs of every kind."""

from dataclasses import replace
from typing import Any

import pytest

from models.dit import DiTConfig
from models.family import NetworkConfig
from models.moviegen import MovieGenConfig
from models.stdit import STDiTConfig
from parallel.context import Comm
from tests.distributed.networks import PACKS, compare

SHAPE: dict[str, Any] = {"hidden_size": 48, "num_layers": 2, "num_heads": 4}
NETWORKS: dict[str, NetworkConfig] = {
    "dit": DiTConfig(**SHAPE, mlp_ratio=2.0),
    "low rank": DiTConfig(
        **SHAPE, adaln_rank=5, project_text=False, absolute_positions="learned", mlp_ratio=2.0
    ),
    "moviegen": MovieGenConfig(**SHAPE, num_kv_heads=2, ffn_size=56, max_grid=[8, 8, 8]),
    "stdit": STDiTConfig(
        **SHAPE, mlp_ratio=2.0, sublayers=["spatial", "full", "cross", "temporal", "mlp"]
    ),
    "stdit in zig-zag": STDiTConfig(
        **SHAPE,
        mlp_ratio=2.0,
        sublayers=["spatial", "cross", "mlp", "temporal", "full", "cross", "mlp"],
        zigzag=True,
    ),
}
KINDS = ("uneven", "videos and an image", "image", "one token")
WAYS: dict[int, list[tuple[int, int, Comm]]] = {
    2: [(1, 2, "p2p"), (1, 2, "all_gather"), (2, 1, "a2a")],
    4: [
        (1, 4, "p2p"),
        (1, 4, "all_gather"),
        (4, 1, "a2a"),
        (2, 2, "a2a+p2p"),
        (2, 2, "a2a+all_gather"),
    ],
}


def worst_of(config: NetworkConfig, ways: list[tuple[int, int, Comm]]) -> dict[str, float]:
    """Largest error on this rank of each way and pack."""
    return {
        f"{kind}, ulysses={ulysses} ring={ring} {comm}": compare(
            config, PACKS[kind], ulysses, ring, [comm]
        ).worst
        for kind in KINDS
        for ulysses, ring, comm in ways
    }


@pytest.mark.parametrize("size", list(WAYS))
@pytest.mark.parametrize("name", list(NETWORKS))
def test_outputs_and_gradients_are_those_of_one_process(worlds, name, size):
    by_rank = worlds[size].run(worst_of, NETWORKS[name], WAYS[size])
    worst = {case: max(errors[case] for errors in by_rank) for case in by_rank[0]}
    print(f"{name} over {size}: {len(worst)} cases, worst {max(worst.values()):.1e}")
    assert {case: error for case, error in worst.items() if error > 1e-12} == {}


@pytest.mark.parametrize("size", list(WAYS))
@pytest.mark.parametrize("name", ["dit", "moviegen", "stdit in zig-zag"])
def test_samples_whose_beginning_is_given(worlds, name, size):
    config = replace(NETWORKS[name], prefix=True, action_dim=3)
    for ulysses, ring, comm in WAYS[size]:
        results = worlds[size].run(compare, config, PACKS["given frames"], ulysses, ring, [comm])
        assert max(result.worst for result in results) <= 1e-12
