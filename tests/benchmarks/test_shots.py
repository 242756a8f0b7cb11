"""Videos with known boundaries that `vfm bench shots` puts together. No files."""

import numpy as np
import pytest

from benchmarks import _drawn_shots, _made_scenes

_GREYS = (60, 120, 180)


@pytest.mark.parametrize(("kind", "level"), [("black", 0), ("white", 255), ("cross", None)])
def test_fades_are_where_the_plan_says(kind: str, level: int | None) -> None:
    plan = _drawn_shots.draw(3, [6.0] * 3, num_shots=3, kinds=[kind], troubles=["none"])
    sources = {n: lambda at_s, n=n: np.full((8, 8, 3), _GREYS[n], np.uint8) for n in range(3)}
    shown = np.array([p.mean() for p in _drawn_shots.pictures(plan, sources)])
    assert len(plan.fades_s) == 2 and not plan.cuts_s
    inside = np.zeros(len(shown), bool)
    for start_s, end_s in plan.fades_s:
        first, past = (round(at * float(plan.rate)) for at in (start_s, end_s))
        inside[first:past] = True
        if level is not None:
            assert np.abs(shown[first:past] - level).min() < 12
    assert set(shown[~inside].tolist()) == {float(grey) for grey in _GREYS}
    assert np.isin(shown[inside], _GREYS).mean() < 0.2


def test_scenes_move_and_differ_and_come_again_by_their_seed() -> None:
    for seed in range(2):
        one, again, other = (_made_scenes.scene(n) for n in (seed, seed, seed + 100))
        assert np.array_equal(one(1.0), again(1.0))
        assert not np.array_equal(one(1.0), one(1.5))
        assert np.abs(one(1.0).astype(int) - other(1.0)).mean() > 5
