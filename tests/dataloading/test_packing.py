"""Packs: the budget, the best fill, the age bound, and the fill against plain algorithms."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloading.packing import choose


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=9), st.integers(40, 90))
def test_the_pack_holds_the_longest_and_is_full(lengths: list[int], budget: int) -> None:
    chosen = choose(lengths, [100] * len(lengths), budget)
    seed = lengths.index(max(lengths))
    sums = [
        lengths[seed] + sum(lengths[i] for i in subset)
        for size in range(len(lengths))
        for subset in itertools.combinations([i for i in range(len(lengths)) if i != seed], size)
    ]
    filled = sum(lengths[i] for i in chosen)
    assert seed in chosen
    assert len(set(chosen)) == len(chosen)
    # The best there is, or within the 2% of the budget that longest first may waste.
    assert filled == max(s for s in sums if s <= budget) or 0.98 * budget <= filled <= budget


def test_the_longest_that_fit_are_taken_where_they_fill_the_pack() -> None:
    # After the seed 60: 30 then 9 leaves 1 of 100, though 20 + 20 would leave none.
    assert choose([20, 20, 9, 30, 60], [9] * 5, 100) == [2, 3, 4]


def test_the_best_subset_is_taken_where_longest_first_wastes_much() -> None:
    # After the seed 60: 30 leaves 10 of 100 empty, 20 + 20 leaves none.
    assert choose([20, 20, 30, 60], [9] * 4, 100) == [0, 1, 3]
    # 21 + 19 and 22 + 18 both fill it; the longer come first.
    assert choose([18, 19, 21, 22, 37, 60], [9] * 6, 100) == [0, 3, 5]


def test_a_sample_at_its_bound_comes_first() -> None:
    lengths = [2, 10, 10, 10]
    assert choose(lengths, [1, 9, 9, 9], 10) == [1]
    assert choose(lengths, [0, 9, 9, 9], 10) == [0]
    # Two that must both go within two packs: the older one now.
    assert choose([2, 9, 10, 10], [1, 1, 9, 9], 10) == [0]


def stream(lengths: list[int], budget: int, pool_size: int, max_age: int) -> list[list[int]]:
    """Packs as lists of positions in `lengths`, from a pool kept full while there is more."""
    pool: list[tuple[int, int]] = []
    packs: list[list[int]] = []
    waiting = iter(range(len(lengths)))
    while True:
        for i in itertools.islice(waiting, pool_size - len(pool)):
            pool.append((i, len(packs)))
        if not pool:
            return packs
        slack = [entered + max_age - len(packs) for _, entered in pool]
        chosen = choose([lengths[i] for i, _ in pool], slack, budget)
        assert all(len(packs) - pool[c][1] <= max_age for c in chosen)
        packs.append([pool[c][0] for c in chosen])
        pool = [entry for c, entry in enumerate(pool) if c not in set(chosen)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 5))
def test_no_sample_waits_longer_than_the_bound(seed: int, pool_size: int, extra: int) -> None:
    rnd = random.Random(seed)
    # Mostly samples that fill a pack alone: the worst case for the small ones.
    lengths = [rnd.choice([100, 100, 99, 60, 3, 1]) for _ in range(120)]
    packs = stream(lengths, 100, pool_size, pool_size + extra)
    assert sorted(i for pack in packs for i in pack) == list(range(120))
    assert all(sum(lengths[i] for i in pack) <= 100 for pack in packs)


def next_fit(lengths: list[int], budget: int) -> int:
    packs, used = 1, 0
    for length in lengths:
        if used + length > budget:
            packs, used = packs + 1, 0
        used += length
    return packs


def first_fit_decreasing(lengths: list[int], budget: int, buffer: int) -> int:
    total = 0
    for begin in range(0, len(lengths), buffer):
        packs: list[int] = []
        for length in sorted(lengths[begin : begin + buffer], reverse=True):
            fit = next((i for i, used in enumerate(packs) if used + length <= budget), None)
            if fit is None:
                packs.append(length)
            else:
                packs[fit] += length
        total += len(packs)
    return total


@pytest.mark.parametrize(
    ("kind", "least"), [("video", 0.99), ("lognormal", 0.99), ("uniform", 0.95)]
)
def test_fill_beats_plain_algorithms_with_the_same_buffer(kind: str, least: float) -> None:
    rnd = random.Random(1)
    draw = {
        "video": lambda: 16 * (1 + rnd.choice([0, 4, 8, 16])) * rnd.choice([12, 20, 35, 60, 100]),
        "lognormal": lambda: int(rnd.lognormvariate(6, 1)),
        "uniform": lambda: rnd.randint(64, 4096),
    }[kind]
    budget = {"video": 32768, "lognormal": 8192, "uniform": 4096}[kind]
    lengths = [min(budget, max(1, draw())) for _ in range(2000)]
    packs = len(stream(lengths, budget, 128, 256))
    assert packs <= first_fit_decreasing(lengths, budget, 128)
    assert packs < next_fit(lengths, budget)
    assert sum(lengths) / (packs * budget) > least - 1 / packs
