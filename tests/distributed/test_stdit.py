"""Gloo tier: an ST-DiT over ranks against one process, and which layer sends what."""

import pytest
import torch
import torch.distributed as dist

from models.pack import PackLayout
from models.stdit import STDiTConfig
from parallel.collectives import Channel
from parallel.context import Comm
from parallel.spatiotemporal import Halves
from tests.distributed.cases import groups_of
from tests.distributed.networks import PACKS, TOKEN_DIM, Pack, compare

SHAPE = {"hidden_size": 48, "num_heads": 4, "mlp_ratio": 2.0}
ALL = ["spatial", "full", "cross", "temporal", "mlp"]
V3 = ["spatial", "cross", "mlp", "temporal", "cross", "mlp"]


@pytest.mark.parametrize(
    ("name", "ulysses", "ring", "comm", "sublayers", "zigzag"),
    [
        ("even", 1, 2, "p2p", ALL, False),
        ("even", 2, 2, "a2a+p2p", V3, True),
        ("uneven", 2, 1, "a2a", ALL, True),
        ("uneven", 1, 4, "p2p", ALL, False),
        ("uneven", 2, 2, "a2a", ["full", "temporal", "spatial", "mlp"], False),
        ("videos and an image", 1, 2, "all_gather", ALL, True),
        ("videos and an image", 1, 4, "p2p", V3, False),
        ("videos and an image", 4, 1, "a2a", ALL, True),
    ],
)
def test_network_over_ranks_is_as_in_one_process(
    worlds, name, ulysses, ring, comm: Comm, sublayers, zigzag
):
    config = STDiTConfig(**SHAPE, num_layers=3, sublayers=sublayers, zigzag=zigzag)
    world = worlds[ulysses * ring]
    results = world.run(compare, config, PACKS[name], ulysses, ring, [comm])
    worst = max(result.worst for result in results)
    print(f"{name}, ulysses={ulysses} ring={ring} {comm} zigzag={zigzag}: {worst:.1e}")
    assert worst <= 1e-12
    for result in results:
        calls = {layer: n for (layer, name), (n, _) in result.sent.items() if name == "switch"}
        in_blocks = sum(n for layer, n in calls.items() if layer.startswith("blocks"))
        back = sum(n for (_, name), (n, _) in result.sent.items() if name == "switch.backward")
        # L with the order turned in every second block, else 2L - 1.
        assert in_blocks == (3 if zigzag else 5)
        assert back == sum(calls.values()) == in_blocks + 1


@pytest.mark.parametrize("name", ["shorter than the ranks", "one token", "image", "long and thin"])
@pytest.mark.parametrize(
    ("ulysses", "ring", "comm"), [(1, 2, "p2p"), (1, 4, "all_gather"), (2, 2, "a2a+p2p")]
)
def test_packs_that_split_badly(worlds, name, ulysses, ring, comm: Comm):
    config = STDiTConfig(**SHAPE, num_layers=2, sublayers=ALL)
    world = worlds[ulysses * ring]
    for result in world.run(compare, config, PACKS[name], ulysses, ring, [comm]):
        assert result.worst <= 1e-12


def test_images_and_tiny_packs_are_not_switched(world4):
    """One frame cannot be held in whole frames by four ranks: the heads are exchanged instead."""
    config = STDiTConfig(**SHAPE, num_layers=2, sublayers=ALL)
    for result in world4.run(compare, config, PACKS["image"], 4, 1, ["a2a"]):
        assert result.worst <= 1e-12
        forward = {key: n for key, (n, _) in result.sent.items() if "backward" not in key[1]}
        assert forward == {
            (f"blocks.{i}.{kind}", f"ulysses.{what}"): 1
            for i in range(2)
            for kind in ("spatial", "full")
            for what in ("qkv", "out")
        }
    for result in world4.run(compare, config, PACKS["long and thin"], 1, 4, ["p2p"]):
        assert result.worst <= 1e-12
        layers = {layer for layer, _ in result.sent}
        assert layers == {f"blocks.{i}.{kind}" for i in range(2) for kind in ("temporal", "full")}


B, T, H, W, HIDDEN = 2, 8, 4, 4, 48
TABLE = Pack(((T, H, W),) * B, (3, 2), (24.0, 24.0))


@pytest.mark.parametrize("cp", [2, 4])
def test_the_table_of_primitives(worlds, cp):
    """Layer by layer: what is sent, of what shape. Bytes are float64; d is the hidden size.

    temporal, spatial: computed alone, after an A2A of (b, thw/cp, d); full: P2P of the keys and
    values of (b, thw/cp, d), cp - 1 times; cross, mlp: nothing.
    """
    config = STDiTConfig(**SHAPE, num_layers=2, sublayers=ALL, zigzag=True)
    hidden_bytes = B * T * H * W // cp * HIDDEN * 8
    a2a = (1, hidden_bytes * (cp - 1) // cp)
    ring = (cp - 1, (cp - 1) * 2 * hidden_bytes)
    home = (cp, cp * 2 * hidden_bytes)
    expected = {}
    for i, switched in enumerate(("temporal", "spatial")):
        expected[f"blocks.{i}.{switched}", "switch"] = a2a
        expected[f"blocks.{i}.{switched}", "switch.backward"] = a2a
        expected[f"blocks.{i}.full", "ring.kv"] = ring
        expected[f"blocks.{i}.full", "ring.kv.backward"] = ring
        expected[f"blocks.{i}.full", "ring.dkv.backward"] = home
    for result in worlds[cp].run(compare, config, TABLE, 1, cp, ["p2p"]):
        assert result.sent == expected
    for shapes in worlds[cp].run(shapes_of_rows):
        assert shapes == {
            "spatial": (B * T // cp, H * W),
            "temporal": (B * H * W // cp, T),
            "full": (B, T * H * W // cp),
        }


def shapes_of_rows() -> dict[str, tuple[int, int]]:
    """Of this rank, the number and length of the rows that attend in each kind of layer."""
    whole = PackLayout.build(TABLE.grids, TABLE.lens_text, torch.tensor(TABLE.fps))
    groups = groups_of(1, dist.get_world_size())
    assert groups.cp is not None
    halves = Halves(whole, Channel(groups.cp))
    found = {
        "spatial": halves.frames.spatial.attention,
        "temporal": halves.places.temporal.attention,
        "full": halves.places.self_attention,
    }
    shapes = {}
    for kind, packed in found.items():
        (length,) = set(packed.lens_q)
        shapes[kind] = (len(packed.lens_q), length)
    return shapes


def test_a_fixed_order_returns_what_it_was_given_as_it_was_given(world2):
    """The last of 2L exchanges carries a token's few features, not the hidden ones."""
    config = STDiTConfig(**SHAPE, num_layers=2, sublayers=ALL)
    for result in world2.run(compare, config, TABLE, 1, 2, ["p2p"]):
        switches = {layer: s for (layer, name), s in result.sent.items() if name == "switch"}
        tokens = B * T * H * W // 2 // 2
        hidden, small = (1, tokens * HIDDEN * 8), (1, tokens * TOKEN_DIM * 8)
        assert switches == {
            "blocks.0.temporal": hidden,
            "blocks.1.spatial": hidden,
            "blocks.1.temporal": hidden,
            "final": small,
        }
