"""Rows that wait on disk are those that were written, however they are asked for. No video."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from common.tape import Spill, Tape


def _filled(spill: Spill, num: int, seed: int = 0) -> tuple[Tape, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    times = np.cumsum(random.integers(1, 5, num))
    values = random.random((num, 33)).astype(np.float32)
    tape = Tape(spill, ("values", np.float32, (33,)))
    for at, row in zip(times.tolist(), values, strict=True):
        tape.append(at, row)
    return tape, times, values


@pytest.mark.parametrize("num", [0, 1, 239, 240, 241, 480, 1000])
def test_rows_positions_and_times_are_those_of_the_whole_array(tmp_path: Path, num: int) -> None:
    """A block has 240 rows here."""
    with Spill(tmp_path) as spill:
        tape, times, values = _filled(spill, num)
        assert len(tape) == num
        last = int(times[-1]) if num else 0
        edges = np.random.default_rng(1).integers(-3, last + 4, (200, 2)).tolist()
        for start, end in [*edges, [-9, last + 9], [last + 1, last + 2]]:
            first, past = np.searchsorted(times, (start, end)).tolist()
            rows = tape.between(start, end)
            assert rows["at"].tolist() == times[first:past].tolist()
            assert np.array_equal(rows["values"], values[first : max(first, past)])
            assert tape.position(start) == first
        assert [tape.time(n) for n in range(0, num, 17)] == times[::17].tolist()
        with pytest.raises(IndexError):
            tape.time(num)


def test_tapes_share_a_file_and_none_is_made_for_few_rows(tmp_path: Path) -> None:
    with Spill(tmp_path / "later") as spill:
        first, times, values = _filled(spill, 100)
        assert not (tmp_path / "later").exists()
        second, other_times, other_values = _filled(spill, 1000, seed=5)
        begin = spill.write(b"between")
        for tape, at, expected in (
            (first, times, values),
            (second, other_times, other_values),
        ):
            assert np.array_equal(tape.between(0, int(at[-1]) + 1)["values"], expected)
        assert spill.read(begin, 7) == b"between"
    assert list((tmp_path / "later").iterdir()) == []


def test_memory_holds_one_block(tmp_path: Path) -> None:
    with Spill(tmp_path) as spill:
        tape = Tape(spill, ("value", np.float64))
        tracemalloc.start()
        for at in range(400_000):
            tape.append(at, 0.5)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert held < 10_000, "of 6.4 MB"
