"""Windows of the splits, by arithmetic; `test_loader` looks at the frames themselves."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigError
from dataloading.config import Compression, LoaderConfig
from dataloading.split import Windows, windows_of


class Table(SimpleNamespace):
    """What `windows_of` uses of a `ClipTable`, of clips given as (num_frames, fps)."""

    def __init__(self, *clips: tuple[int, float]) -> None:
        n = len(clips)
        fps = np.array([fps for _, fps in clips])
        super().__init__(
            fps=fps,
            duration_s=np.array([num for num, _ in clips]) / fps,
            width=np.full(n, 64),
            height=np.full(n, 64),
        )

    def __len__(self) -> int:
        return len(self.fps)

    def clip_ids(self, ordinals: np.ndarray) -> list[str]:
        return [f"clip{i}" for i in ordinals]


def windows(table: Table, split: str, num_frames: list[int], fps: float | None = None) -> Windows:
    config = LoaderConfig(
        path="x", token_budget=10**6, num_frames=num_frames, size=[64, 64], fps=fps
    )
    return windows_of(table, config, Compression(), split)  # type: ignore[arg-type]


RATES = [24.0, 25.0, 30000 / 1001, 30.0, 59.94, 60.0]


@settings(max_examples=300, deadline=None)
@given(
    num=st.integers(1, 400),
    rate=st.sampled_from(RATES),
    fps=st.sampled_from([None, 5.0, 8.0, 12.0, 24.0, 29.97]),
    lengths=st.sets(st.sampled_from([1, 5, 9, 13, 17, 33]), min_size=1),
)
def test_train_and_val_show_different_frames_of_the_clip(
    num: int, rate: float, fps: float | None, lengths: set[int]
) -> None:
    table = Table((num, rate))
    train = windows(table, "train", sorted(lengths), fps)
    val = windows(table, "val", sorted(lengths), fps)

    def shown(part: Windows, column: int, start: int) -> tuple[int, int]:
        """First and last frame of a window, a time meaning the nearest frame."""
        reach = (part.candidates[column] - 1) * rate / part.fps[0]
        first = int(part.first[0]) + start
        return first, int(np.floor(first + reach + 0.499))

    last_train = -1
    for column in np.flatnonzero(train.starts[0]).tolist():
        last_train = max(last_train, shown(train, column, int(train.starts[0, column]) - 1)[1])
    assert last_train < num
    if not val.usable[0]:
        # Nothing held out: even the shortest window does not fit twice, or just barely.
        reach = (min(lengths) - 1) * rate / (fps or rate)
        assert num < 2 * (reach + 1) + 1
        return
    assert (val.starts[0] > 0).sum() == 1
    column = int(np.argmax(val.starts[0]))
    first_val, last_val = shown(val, column, 0)
    assert last_train < first_val
    assert last_val < num
    # The held-out length can be trained on too, and a longer one would not fit twice.
    assert train.starts[0, column] > 0
    for longer in val.candidates[column + 1 :]:
        reach = (longer - 1) * rate / val.fps[0]
        assert num < 2 * (reach + 1) + 1


def test_exact_windows_of_one_clip() -> None:
    # 20 frames at their own rate: 9 fit twice (held out 11..19), 17 do not.
    val = windows(Table((20, 24.0)), "val", [1, 9, 17])
    train = windows(Table((20, 24.0)), "train", [1, 9, 17])
    assert val.starts.tolist() == [[0, 1, 0]]
    assert (val.first[0], val.end[0]) == (11, 20)
    assert train.starts.tolist() == [[11, 3, 0]]
    assert (train.first[0], train.end[0]) == (0, 11)
    assert windows(Table((20, 24.0)), "all", [1, 9, 17]).starts.tolist() == [[20, 12, 4]]


def test_a_clip_too_short_to_split_is_for_training() -> None:
    table = Table((9, 24.0), (1, 24.0), (4, 24.0))
    train, val = windows(table, "train", [9]), windows(table, "val", [9])
    assert val.usable.tolist() == [False, False, False]
    assert train.usable.tolist() == [True, False, False]
    assert windows(table, "train", [1]).usable.tolist() == [True, True, True]
    assert windows(table, "val", [1]).usable.tolist() == [True, False, True]


def test_slower_windows_reach_further() -> None:
    # 5 frames at 6 per second of a clip at 24 reach over 16 periods.
    assert windows(Table((20, 24.0)), "all", [5], fps=6.0).starts.tolist() == [[4]]
    assert windows(Table((16, 24.0)), "all", [5], fps=6.0).starts.tolist() == [[0]]


def test_a_window_over_the_budget_is_refused_by_name() -> None:
    config = LoaderConfig(
        path="x", token_budget=47, num_frames=[1, 9], size=[64, 64], resize="area"
    )
    table = Table((5, 24.0), (20, 24.0))
    with pytest.raises(ConfigError) as error:
        windows_of(table, config, Compression(), "train")  # type: ignore[arg-type]
    assert "clip1 (9 frames are 48 tokens)" in str(error.value)
    assert "clip0" not in str(error.value)
    assert "raise it to 48" in str(error.value)
