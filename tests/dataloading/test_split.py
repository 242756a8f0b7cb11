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


def test_typical_shape() -> None:
    table = Table((40, 12.0), (9, 24.0), (9, 24.0), (4, 60.0), (2, 99.0))
    table.width = np.array([64, 64, 96, 96, 32])
    config = LoaderConfig(
        path="x", token_budget=10**6, num_frames=[5, 13, 65], size=[64, 64], resize="area"
    )
    # 65 frames fit no clip, 13 the first; two clips are too short for anything.
    shape = windows_of(table, config, Compression(), "all").typical_shape()  # type: ignore[arg-type]
    assert shape == (13, 64, 64, 24.0)
    table.width = np.array([64, 256, 256, 96, 32])
    shape = windows_of(table, config, Compression(), "all").typical_shape()  # type: ignore[arg-type]
    assert shape == (13, 128, 32, 24.0)


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

    def shown(part: Windows, column: int, index: int) -> tuple[int, int]:
        """First and last frame of a window, a time meaning the nearest frame."""
        reach = (part.candidates[column] - 1) * rate / part.fps[0]
        _, first = part.place(0, column, index)
        return first, int(np.floor(first + reach + 0.499))

    trained: set[int] = set()
    for column in range(len(train.candidates)):
        for index in range(int(train.starts[0, column])):
            first, last = shown(train, column, index)
            trained.update(range(first, last + 1))
    assert not trained or (min(trained) >= 0 and max(trained) < num)
    if not val.usable[0]:
        # Nothing held out: even the shortest window does not fit three times, or just barely.
        reach = (min(lengths) - 1) * rate / (fps or rate)
        assert num < 3 * (reach + 1) + 2
        return
    assert (val.starts[0] > 0).sum() == 1
    column = int(np.argmax(val.starts[0]))
    first_val, last_val = shown(val, column, 0)
    assert first_val >= 0
    assert last_val < num
    assert not trained & set(range(first_val, last_val + 1))
    # What is left for training is the same on both sides, up to a frame.
    assert abs(first_val - (num - 1 - last_val)) <= 2
    # The held-out length can be trained on too, and a longer one would not fit three times.
    assert train.starts[0, column] > 0
    for longer in val.candidates[column + 1 :]:
        reach = (longer - 1) * rate / val.fps[0]
        assert num < 3 * (reach + 1) + 2


def test_exact_windows_of_one_clip() -> None:
    # 31 frames at their own rate: 9 fit three times (held out 11..19), 17 do not.
    table = Table((31, 24.0))
    val = windows(table, "val", [1, 9, 17])
    train = windows(table, "train", [1, 9, 17])
    assert val.starts.tolist() == [[0, 1, 0]]
    assert (val.first[0, 0], val.end[0, 0]) == (11, 20)
    assert train.first.tolist() == [[0, 20]]
    assert train.end.tolist() == [[11, 31]]
    assert train.starts_in.tolist() == [[[11, 3, 0], [11, 3, 0]]]
    assert train.starts.tolist() == [[22, 6, 0]]
    assert [train.place(0, 1, i) for i in (0, 2, 3, 5)] == [(0, 0), (0, 2), (1, 20), (1, 22)]
    assert windows(table, "all", [1, 9, 17]).starts.tolist() == [[31, 23, 15]]


def test_a_clip_too_short_to_split_is_for_training() -> None:
    table = Table((18, 24.0), (1, 24.0), (4, 24.0))
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
