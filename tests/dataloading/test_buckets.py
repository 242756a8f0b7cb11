"""Every clip has exactly one bucket, however they are drawn (wiring only)."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloading.buckets import OTHER, Buckets
from dataloading.schema import Manifest, read_manifest, write_manifest

ASPECTS = ["9x16", "3x4", "1x1", "4x3", "16x9", "21x9"]
rising = st.lists(st.integers(1, 4000), unique=True, max_size=5).map(sorted)
drawn = st.builds(
    Buckets,
    aspects=st.lists(st.sampled_from(ASPECTS), min_size=1, unique=True),
    short_sides_px=rising,
    durations_s=rising.map(lambda bounds: [bound / 8 for bound in bounds]),
    aspect_tolerance=st.none() | st.floats(0, 1),
)


@given(
    buckets=drawn,
    width=st.integers(2, 8000),
    height=st.integers(2, 8000),
    duration_s=st.floats(0.01, 900),
)
@settings(max_examples=300)
def test_every_clip_has_the_bucket_that_its_name_states(
    buckets: Buckets, width: int, height: int, duration_s: float
) -> None:
    aspect, side, span = buckets.of(width, height, duration_s).split("_")
    ratio = width / height

    def distance(name: str) -> float:
        across, down = map(int, name.split("x"))
        return abs(math.log(ratio / (across / down)))

    nearest = min(map(distance, buckets.aspects))
    tolerance = buckets.aspect_tolerance
    if aspect == OTHER:
        assert tolerance is not None and nearest > math.log1p(tolerance) - 1e-12
    else:
        assert distance(aspect) == pytest.approx(nearest, abs=1e-12)
        if tolerance is not None:
            assert nearest <= math.log1p(tolerance) + 0.5 / min(width, height) + 1e-12
    short, bounds = min(width, height), buckets.short_sides_px
    if side == "any":
        assert not bounds
    elif side.startswith("under"):
        assert short < bounds[0] == int(side.removeprefix("under").removesuffix("p"))
    else:
        low = int(side.removesuffix("p"))
        above = [bound for bound in bounds if bound > low]
        assert low in bounds and low <= short and all(short < bound for bound in above)
    match = re.fullmatch(r"([\d.e+-]+)-([\d.e+-]+|inf)s", span)
    assert match is not None
    low_s, high_s = float(match[1]), float(match[2])
    edges = [0.0, *buckets.durations_s, math.inf]
    assert any((f"{a:g}", f"{b:g}") == (match[1], match[2]) for a, b in pairwise(edges))
    assert low_s * (1 - 1e-5) <= duration_s < high_s * (1 + 1e-5)


def test_names_as_users_see_them() -> None:
    buckets = Buckets(
        aspects=["9x16", "3x4", "1x1", "4x3", "16x9"],
        short_sides_px=[240, 360, 480, 720, 1080],
        durations_s=[2.0, 5.0, 10.0],
    )
    assert buckets.of(640, 360, 3.0) == "16x9_360p_2-5s"
    assert buckets.of(404, 720, 0.9) == "9x16_360p_0-2s"
    assert buckets.of(64, 64, 60.0) == "1x1_under240p_10-infs"
    assert buckets.of(8000, 100, 2.0) == "16x9_under240p_2-5s"


def test_what_is_near_no_aspect_is_other() -> None:
    buckets = Buckets(
        aspects=["1x1", "16x9"], short_sides_px=[], durations_s=[], aspect_tolerance=0.1
    )
    assert buckets.of(1920, 1080, 1.0) == "16x9_any_0-infs"
    assert buckets.of(1920, 1000, 1.0) == "16x9_any_0-infs"
    assert buckets.of(1920, 800, 1.0) == "other_any_0-infs"
    assert buckets.of(720, 1280, 1.0) == "other_any_0-infs"


@pytest.mark.parametrize("tolerance", [None, 0.25])
def test_a_manifest_keeps_them(tmp_path: Path, tolerance: float | None) -> None:
    buckets = Buckets(
        aspects=["16x9"], short_sides_px=[360], durations_s=[2.5], aspect_tolerance=tolerance
    )
    write_manifest(tmp_path, Manifest(buckets=buckets))
    assert read_manifest(tmp_path).buckets == buckets
    # One that was written before has none.
    raw = json.loads((tmp_path / "manifest.json").read_text())
    del raw["buckets"]
    (tmp_path / "manifest.json").write_text(json.dumps(raw))
    assert read_manifest(tmp_path).buckets is None
