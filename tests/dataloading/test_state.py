"""States that belong to another stream are refused with the reason; ranks' states merge."""

import pytest

from common.errors import DataError
from dataloading.state import LoaderState, merge_skipped

IDENTITY = {"data": "abc", "token_budget": 100}


def test_round_trip() -> None:
    state = LoaderState(
        sources=((2, 5, -3), (0, 1, 3)),
        next_pack=9,
        pool=((3, 1, 8),),
        ready=(((4, 1, 7), (5, 1, 8)), ((6, 1, 8),)),
        skipped={"a": "gone"},
        worker=(1, 2),
    )
    assert LoaderState.from_dict(state.to_dict(IDENTITY), IDENTITY) == state


def test_what_changed_is_named() -> None:
    raw = LoaderState().to_dict(IDENTITY)
    with pytest.raises(DataError, match="token_budget was 100 and is now 200") as error:
        LoaderState.from_dict(raw, {"data": "abc", "token_budget": 200})
    assert "data was" not in str(error.value)
    with pytest.raises(DataError, match="data was 'abc' and is now 'abd'"):
        LoaderState.from_dict(raw, {"data": "abd", "token_budget": 100})


def test_other_versions_and_other_things_are_refused() -> None:
    raw = LoaderState().to_dict(IDENTITY)
    with pytest.raises(DataError, match="version 99, this vfm reads 2"):
        LoaderState.from_dict({**raw, "version": 99}, IDENTITY)
    with pytest.raises(DataError, match="lacks version, identity"):
        LoaderState.from_dict({"step": 3}, IDENTITY)


def test_merging_unites_what_each_rank_skipped() -> None:
    raw = [LoaderState(next_pack=4, skipped={i: "bad"}).to_dict(IDENTITY) for i in ("a", "b")]
    merged = merge_skipped(raw)
    assert merged["skipped"] == {"a": "bad", "b": "bad"}
    assert raw[0]["skipped"] == {"a": "bad"}
    raw[1]["next_pack"] = 5
    with pytest.raises(DataError, match="differ in next_pack"):
        merge_skipped(raw)
