"""The policy of pool sizes, as a pure function: optimal, fair, fitting (wiring only)."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigError
from curation.engine.balance import Allocation, Demand, finish_of, solve
from curation.engine.packing import Node, Room, Slot
from curation.engine.resize import Member, plan
from curation.stage import Resources


def demand(name: str, work_s: float | None, **more: object) -> Demand:
    outer = {k: more.pop(k) for k in ("setup_s", "fixed", "most") if k in more}
    return Demand(name=name, work_s=work_s, needs=Resources(**more), **outer)  # type: ignore


def gpu(name: str, work_s: float | None, **more: object) -> Demand:
    return demand(name, work_s, cpus=0.0, gpus=1.0, **more)


def counts(allocation: Allocation) -> dict[str, int]:
    return {name: len(shares) for name, shares in allocation.shares.items()}


def nodes(count: int, *, cpus: float = 64, gpus: int = 8) -> list[Node]:
    return [Node(node_id=f"n{i}", cpus=cpus, gpus=gpus) for i in range(count)]


@pytest.mark.parametrize(("num_nodes", "fast", "slow"), [(1, 1, 7), (4, 2, 30), (8, 3, 61)])
def test_one_stage_twenty_times_faster_than_the_other(num_nodes: int, fast: int, slow: int) -> None:
    """The published case: 8, 32 and 64 GPUs."""
    found = solve([gpu("x", 50.0), gpu("y", 1000.0)], nodes(num_nodes))
    assert counts(found) == {"x": fast, "y": slow}


def test_a_starving_stage_is_given_workers() -> None:
    """Scene detection at one worker starves captioning; eight free it."""
    stages = [demand("scene", 800.0, cpus=1.0), gpu("caption", 800.0)]
    found = solve(stages, nodes(1, cpus=8))
    assert counts(found) == {"scene": 8, "caption": 8}
    one = finish_of(stages, {"scene": 1, "caption": 8})
    assert one == (800.0, "scene")
    assert found.finish_s == pytest.approx(100.0)


def brute(demands: Sequence[Demand], cpus: int, gpus: int) -> float:
    """The least finish over all integer pools."""
    best = math.inf
    spans = [range(1, (gpus if d.needs.gpus else cpus) + 1) for d in demands]
    for pools in itertools.product(*spans):
        used_cpus = sum(n * d.needs.cpus for n, d in zip(pools, demands, strict=True))
        used_gpus = sum(n * d.needs.gpus for n, d in zip(pools, demands, strict=True))
        if used_cpus <= cpus + 1e-9 and used_gpus <= gpus + 1e-9:
            finish = max((d.work_s or 0) / n for n, d in zip(pools, demands, strict=True))
            best = min(best, finish)
    return best


works = st.floats(min_value=0.1, max_value=1e4)


@settings(max_examples=60)
@given(
    cpu_works=st.lists(works, min_size=1, max_size=3),
    gpu_works=st.lists(works, max_size=2),
    cpus=st.integers(4, 7),
    gpus=st.integers(2, 6),
    gpu_cpus=st.sampled_from([0.0, 0.5]),
)
def test_nothing_is_faster_on_one_node(
    cpu_works: list[float], gpu_works: list[float], cpus: int, gpus: int, gpu_cpus: float
) -> None:
    demands = [demand(f"c{i}", w, cpus=1.0) for i, w in enumerate(cpu_works)]
    demands += [demand(f"g{i}", w, cpus=gpu_cpus, gpus=1.0) for i, w in enumerate(gpu_works)]
    found = solve(demands, [Node(node_id="n", cpus=cpus, gpus=gpus)])
    assert found.finish_s == pytest.approx(brute(demands, cpus, gpus), rel=1e-6)


@settings(max_examples=60)
@given(
    stages=st.lists(
        st.tuples(works, st.sampled_from([0.0, 1.0, 2.0]), st.sampled_from([None, 0.1, 0.25])),
        min_size=1,
        max_size=4,
    ),
    sizes=st.lists(st.tuples(st.integers(4, 16), st.integers(4, 8)), min_size=2, max_size=4),
)
def test_what_is_given_fits_and_is_the_same_each_time(
    stages: list[tuple[float, float, float | None]], sizes: list[tuple[int, int]]
) -> None:
    machines = [Node(node_id=f"n{i}", cpus=c, gpus=g) for i, (c, g) in enumerate(sizes)]
    demands = [
        Demand(
            name=f"s{i}",
            work_s=work,
            needs=Resources(cpus=0.5, gpus=gpus, min_gpus=least if gpus == 1 else None),
        )
        for i, (work, gpus, least) in enumerate(stages)
    ]
    found = solve(demands, machines)
    assert solve(demands, machines) == found
    assert solve(demands[::-1], machines[::-1]).finish_s == pytest.approx(found.finish_s, rel=0.01)
    used = sum(sum(found.shares[d.name]) * d.needs.gpus for d in demands)
    assert used <= sum(n.gpus for n in machines) + 1e-6
    for d in demands:
        assert all(d.min_share - 1e-9 <= share <= 1 for share in found.shares[d.name])
    room = Room(machines)
    parts = [(s * d.needs.gpus, s, d) for d in demands for s in found.shares[d.name]]
    for _, share, d in sorted(parts, key=lambda p: -p[0]):
        assert room.take(d.needs, share), "what is promised has a place"
    bigger = [*machines, Node(node_id="more", cpus=16, gpus=8)]
    assert (solve(demands, bigger).finish_s or 0) <= (found.finish_s or 0) * 1.001


def test_fractions_remove_what_whole_workers_waste() -> None:
    """Three light models on whole GPUs take three of four; as fractions they share one."""
    light = [gpu(f"light{i}", 30.0) for i in range(3)]
    divisible = [gpu(f"light{i}", 30.0, min_gpus=0.1) for i in range(3)]
    heavy = gpu("heavy", 300.0)
    one = nodes(1, gpus=4)
    assert counts(solve([*light, heavy], one))["heavy"] == 1
    found = solve([*divisible, heavy], one)
    assert counts(found)["heavy"] == 3
    assert found.finish_s == pytest.approx(100.0)
    assert sum(found.shares["light0"]) == pytest.approx(0.3, abs=0.011)


def test_spare_processors_become_headroom_and_never_cost_a_gpu() -> None:
    demands = [demand("cut", 30.0, cpus=1.0), demand("g", 100.0, cpus=1.0, gpus=1.0)]
    found = solve(demands, [Node(node_id="n", cpus=16, gpus=10)], headroom=1.5)
    assert counts(found) == {"cut": 5, "g": 10}, "3 would do, 4.5 are wanted"
    assert "headroom" in found.notes["cut"]
    tight = solve(demands, [Node(node_id="n", cpus=13, gpus=10)], headroom=1.5)
    assert counts(tight) == {"cut": 3, "g": 10}


def test_until_measured_the_slow_loader_gets_the_rest() -> None:
    demands = [gpu("embed", None, setup_s=2.0, min_gpus=0.1), gpu("caption", None, setup_s=4.0)]
    assert solve(demands, nodes(1)).shares == {"embed": (0.5, 0.5), "caption": (1.0,) * 7}
    halfway = [gpu("embed", 5.0, setup_s=2.0, min_gpus=0.1), gpu("caption", None, setup_s=4.0)]
    assert counts(solve(halfway, nodes(1))) == {"embed": 1, "caption": 7}


def test_labels_custom_resources_and_memory_choose_the_node() -> None:
    machines = [
        Node(node_id="big", cpus=64, gpus=8, memory_bytes=1e12, labels={"accelerator": "h100"}),
        Node(node_id="cut", cpus=32, custom={"nvdec": 2.0}, memory_bytes=1e10),
        Node(node_id="cpu", cpus=32, memory_bytes=1e10),
    ]
    decode = demand("decode", 100.0, cpus=1.0, custom={"nvdec": 1.0})
    caption = demand(
        "caption", 100.0, cpus=1.0, gpus=1.0, labels={"accelerator": "h100"}, memory_bytes=10**11
    )
    found = solve([decode, caption, demand("split", 1.0, cpus=1.0)], machines)
    assert counts(found)["decode"] == 2
    assert counts(found)["caption"] == 2, "as fast as two decoders"
    assert Room(machines).take(Resources(cpus=1.0))[0].node_id == "cpu", "GPUs' nodes come last"
    with pytest.raises(ConfigError, match="caption fits on no node: it needs 1 CPUs, 1 GPUs"):
        solve([caption], machines[1:])


def test_too_few_processors_are_shared_and_too_few_gpus_refused() -> None:
    three = [demand(f"s{i}", 10.0, cpus=1.0) for i in range(3)]
    assert counts(solve(three, [Node(node_id="n", cpus=1)])) == {"s0": 1, "s1": 1, "s2": 1}
    with pytest.raises(ConfigError, match="does not fit on the cluster at once"):
        solve([gpu("a", 1.0), gpu("b", 1.0)], nodes(1, gpus=1))


def test_fixed_pools_and_few_items() -> None:
    found = solve([gpu("a", 10.0, fixed=2), gpu("b", 1000.0, most=3)], nodes(1))
    assert counts(found) == {"a": 2, "b": 3}


def test_thousands_of_gpus_take_a_moment() -> None:
    found = solve([gpu("x", 50.0), gpu("y", 1000.0)], nodes(250))
    assert sum(counts(found).values()) == 2000
    assert counts(found)["x"] == 96


# ---- from the pools that are there


def pools(machines: Sequence[Node], have: Sequence[tuple[Demand, int]]) -> dict[str, list[Member]]:
    room = Room(machines)
    numbers = itertools.count()
    made = {}
    for d, count in have:
        slots = room.take(d.needs, 1.0, count)
        assert len(slots) == count
        made[d.name] = [
            Member(worker_id=next(numbers), slot=slot, idle=i % 2 == 0, draining=False)
            for i, slot in enumerate(slots)
        ]
    return made


def test_workers_are_drained_only_to_make_room() -> None:
    x, y = gpu("x", 50.0, setup_s=5.0), gpu("y", 1000.0, setup_s=5.0)
    made = plan([x, y], nodes(1), pools(nodes(1), [(x, 4), (y, 4)]))
    assert not made.starts, "the GPUs are still held"
    assert [r.step for r in made.retires] == ["x"] * 3
    assert made.retires[0].reason == "makes room for y"
    alone = plan([x], nodes(1), pools(nodes(1), [(x, 8)]))
    assert (alone.starts, alone.retires) == ([], []), "nobody wants what is too much"


def test_no_change_where_the_set_up_costs_more_than_it_saves() -> None:
    x, y = gpu("x", 5.0, setup_s=50.0), gpu("y", 100.0, setup_s=50.0)
    made = plan([x, y], nodes(1), pools(nodes(1), [(x, 4), (y, 4)]))
    assert (made.starts, made.retires) == ([], [])


def test_small_gains_do_not_shuffle_pools() -> None:
    x, y = gpu("x", 1020.0), gpu("y", 1000.0)
    made = plan([x, y], nodes(1), pools(nodes(1), [(x, 4), (y, 4)]))
    assert (made.starts, made.retires) == ([], [])


def test_a_share_is_topped_up_on_the_gpu_that_has_it_free() -> None:
    embed, caption = gpu("embed", 90.0, min_gpus=0.1), gpu("caption", 700.0)
    there = pools(nodes(1), [(caption, 7)])
    half = Slot(node_id="n0", needs=embed.needs, share=0.5, gpus=(7,))
    there["embed"] = [Member(worker_id=99, slot=half, idle=True, draining=False)]
    made = plan([embed, caption], nodes(1), there)
    assert [(s.step, s.slot.share, s.slot.gpus) for s in made.starts] == [("embed", 0.4, (7,))]
    assert made.retires == []


def test_a_node_that_joins_is_used_at_once() -> None:
    x = gpu("x", 1000.0, setup_s=5.0)
    made = plan([x], nodes(2), pools(nodes(1), [(x, 8)]))
    assert len(made.starts) == 8
    assert {s.slot.node_id for s in made.starts} == {"n1"}


def test_nobody_is_drained_for_a_step_that_is_not_measured() -> None:
    """Not even once its workers are seen to take longer to load than those of the others."""
    embed = gpu("embed", None, setup_s=25.0, min_gpus=0.1)
    caption = gpu("caption", None, setup_s=10.0)
    there = pools(nodes(1), [(caption, 7)])
    half = Slot(node_id="n0", needs=embed.needs, share=0.5, gpus=(7,))
    there["embed"] = [Member(worker_id=99, slot=half, idle=True, draining=False)]
    made = plan([embed, caption], nodes(1), there)
    assert made.retires == []


def test_few_measurements_move_no_worker_for_a_small_gain() -> None:
    x, y = gpu("x", 110.0, setup_s=1.0), gpu("y", 890.0, setup_s=1.0)
    there = pools(nodes(1), [(x, 2), (y, 6)])
    assert plan([x, y], nodes(1), there).retires != []
    unsure = [replace(d, sure=False) for d in (x, y)]
    assert plan(unsure, nodes(1), there).retires == []


def test_first_workers_of_all_come_before_the_rest_of_a_large_pool() -> None:
    demands = [demand("cut", None, cpus=1.0), gpu("caption", None, setup_s=4.0)]
    made = plan(demands, nodes(1), {})
    assert [s.step for s in made.starts].index("cut") < 2
    assert len(made.starts) == 9


def test_a_share_is_cut_only_while_those_after_it_are_fed() -> None:
    embed, caption = gpu("embed", 90.0, min_gpus=0.1, setup_s=2.0), gpu("caption", 700.0)
    there = pools(nodes(1), [(caption, 7)])
    half = Slot(node_id="n0", needs=embed.needs, share=0.5, gpus=(7,))
    there["embed"] = [
        Member(worker_id=90 + i, slot=half, idle=True, draining=False) for i in range(2)
    ]
    hungry = plan([replace(embed, fed_s=1.0), caption], nodes(1), there)
    assert hungry.retires == []
    fed = plan([replace(embed, fed_s=1.2), caption], nodes(1), there)
    assert [(r.step, r.worker_id) for r in fed.retires] == [("embed", 90)]
