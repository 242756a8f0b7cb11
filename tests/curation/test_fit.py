"""Limits chosen for a yield or fitted to labels, by property. Tier: wiring (no process group)."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation.fit import Columns, Conflict, limits_for_labels, limits_for_yield


@dataclass(frozen=True, kw_only=True)
class Side:
    score: str
    side: str

    @property
    def setting(self) -> str:
        return f"{self.score}.{self.side}"


RULES = [Side(score=score, side=side) for score in ("a", "b", "c") for side in ("min", "max")]
NONE: dict[str, float | None] = {rule.setting: None for rule in RULES}


def columns(seed: int, count: int, *, missing: float = 0.1, digits: int = 12) -> Columns:
    random = np.random.default_rng(seed)
    values = {name: random.lognormal(0, 2, count).round(digits) for name in "abc"}
    for column in values.values():
        column[random.random(count) < missing] = np.nan
    return Columns(
        values=values,
        length_us=random.integers(1_000_000, 10_000_000, count),
        decidable=random.random(count) > 0.1,
    )


cases = st.tuples(st.integers(0, 10_000), st.integers(1, 120))


@given(case=cases, target=st.floats(0.01, 1.0), picked=st.sets(st.sampled_from(RULES), min_size=1))
@settings(max_examples=150)
def test_a_yield_is_met_within_one_clip(
    case: tuple[int, int], target: float, picked: set[Side]
) -> None:
    data = columns(*case)
    rules = [rule for rule in RULES if rule in picked]
    limits = limits_for_yield(data, rules, target)
    assert set(limits) == {rule.setting for rule in rules}
    kept = data.kept(rules, limits)
    total = data.length_us.sum()
    got, wanted = data.length_us[kept].sum(), target * total
    most = data.length_us[data.decidable].sum()
    measured = np.any([~np.isnan(data.values[rule.score]) for rule in rules], axis=0)
    least = data.length_us[data.decidable & ~measured].sum()
    if data.decidable.any():
        assert kept.any()
        assert abs(got - np.clip(wanted, least, most)) <= data.length_us.max()


@given(case=cases, target=st.floats(0.05, 0.95))
@settings(max_examples=50)
def test_every_limit_of_a_yield_rejects_the_same_share(
    case: tuple[int, int], target: float
) -> None:
    data = columns(*case, missing=0.3)
    data = dataclasses.replace(data, decidable=np.ones(case[1], bool))
    rules = [RULES[0], RULES[3], RULES[4]]
    limits = limits_for_yield(data, rules, target)
    counts = [(~np.isnan(data.values[rule.score])).sum() for rule in rules]
    shares = [
        data.rejected_by(rule, limits[rule.setting]).sum() / count
        for rule, count in zip(rules, counts, strict=True)
        if count
    ]
    if shares and max(shares) < 1:
        assert max(shares) - min(shares) <= 1 / min(count for count in counts if count) + 1e-9


def test_a_larger_yield_never_tightens_a_limit() -> None:
    data = columns(3, 300)
    before = None
    for target in np.linspace(0.05, 1.0, 20):
        kept = data.kept(RULES, NONE | limits_for_yield(data, RULES[::2], float(target)))
        assert before is None or (kept | ~before).all()
        before = kept
    assert before is not None and before.sum() == data.decidable.sum()


def test_equal_values_fall_together() -> None:
    values = np.array([1.0, 1.0, 1.0, 2.0])
    data = Columns(
        values={"a": values}, length_us=np.full(4, 1_000_000), decidable=np.ones(4, bool)
    )
    rule = Side(score="a", side="min")
    assert limits_for_yield(data, [rule], 0.5) in ({"a.min": 1.0}, {"a.min": 2.0})
    assert limits_for_yield(data, [rule], 0.3) == {"a.min": 2.0}
    assert limits_for_yield(data, [rule], 0.9) == {"a.min": 1.0}


def test_limits_have_few_digits() -> None:
    values = np.array([0.1234567, 0.4567891, 0.91234])
    data = Columns(
        values={"a": values}, length_us=np.full(3, 1_000_000), decidable=np.ones(3, bool)
    )
    low, high = Side(score="a", side="min"), Side(score="a", side="max")
    assert limits_for_yield(data, [low], 0.67) == {"a.min": 0.4}
    assert limits_for_yield(data, [high], 0.67) == {"a.max": 0.5}
    assert limits_for_yield(data, [low], 1.0) == {"a.min": 0.12345}


@given(case=cases, seed=st.integers(0, 10_000), share=st.floats(0.1, 1.0))
@settings(max_examples=150)
def test_labels_that_limits_can_tell_apart_are_reproduced(
    case: tuple[int, int], seed: int, share: float
) -> None:
    """Labels made by any limits whatever, on some of the clips, from any limits to begin with."""
    data = columns(*case)
    random = np.random.default_rng(seed)

    def some_limits() -> dict[str, float | None]:
        found: dict[str, float | None] = dict(NONE)
        for rule in RULES:
            if random.random() < 0.5:
                found[rule.setting] = float(random.lognormal(-2 if rule.side == "min" else 2, 1))
        return found

    truth = data.kept(RULES, some_limits())
    labelled = data.decidable & (random.random(len(truth)) < share)
    keep = np.where(labelled, truth, -1).astype(np.int8)
    fitted = limits_for_labels(data, RULES, some_limits(), keep)
    got = data.kept(RULES, fitted)
    assert (got[labelled] == truth[labelled]).all()


def test_limits_that_already_agree_stay() -> None:
    data = columns(1, 60, missing=0)
    limits = NONE | {"a.min": 0.5, "b.max": 7.0}
    kept = data.kept(RULES, limits)
    keep = np.where(data.decidable, kept, -1).astype(np.int8)
    assert limits_for_labels(data, RULES, limits, keep) == limits


def test_labels_change_as_little_as_they_need() -> None:
    values = {"a": np.array([1.0, 2, 3, 4, 5, 6]), "b": np.array([1.0, 9, 9, 9, 9, 9])}
    data = Columns(values=values, length_us=np.full(6, 1_000_000), decidable=np.ones(6, bool))
    rules = [Side(score="a", side="min"), Side(score="b", side="min")]
    limits: dict[str, float | None] = {"a.min": 5.0, "b.min": None}
    keep = np.full(6, -1, np.int8)
    keep[2] = 1
    assert limits_for_labels(data, rules, limits, keep) == {"a.min": 3.0, "b.min": None}
    keep[0], limits["a.min"] = 0, 0.5
    # Either score would do at the same cost; the limit that there is comes first.
    assert limits_for_labels(data, rules, limits, keep) == {"a.min": 2.0, "b.min": None}


def test_contradictions_are_named() -> None:
    values = {"a": np.array([1.0, 2.0, 3.0, np.nan])}
    data = Columns(
        values=values,
        length_us=np.full(4, 1_000_000),
        decidable=np.array([True, True, True, False]),
    )
    rules = [Side(score="a", side="min"), Side(score="a", side="max")]
    keep = np.array([1, 0, 1, 1], np.int8)
    with pytest.raises(Conflict) as conflict:
        limits_for_labels(data, rules, {"a.min": None, "a.max": None}, keep)
    assert (conflict.value.keep, conflict.value.reject) == ([3], [1])
