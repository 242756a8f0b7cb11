"""What the ledger keeps, and what it says when it cannot. No video."""

import sqlite3
from pathlib import Path

import pytest

from common.errors import DataError, VfmError
from common.machine import writing_to
from curation.ledger import Ledger


def test_what_belongs_together_is_kept_together(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)

    def interrupted() -> None:
        with ledger.together():
            ledger.record("a", "0-1", "s", "p", 1, 0.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with ledger.together():
        ledger.record("a", "1-2", "s", "p", 2, 0.0)
    ledger.close()
    again = Ledger(tmp_path)
    assert again.recorded("s", "p") == {"a"}
    assert again.recall("a", "0-1", "s", "p") is None
    assert again.recall("a", "1-2", "s", "p") == 2


def test_only_damage_is_called_damage(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger").close()
    path = tmp_path / "ledger" / "ledger.sqlite"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(VfmError, match="another program has it open") as locked:
        Ledger(tmp_path / "ledger")
    assert not isinstance(locked.value, DataError)
    other.close()
    path.write_bytes(b"no database " * 1000)
    with pytest.raises(DataError, match=f"remove the whole folder {tmp_path},"):
        Ledger(tmp_path / "ledger")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger._db.execute("PRAGMA max_page_count=20")
    with pytest.raises(VfmError, match="its disk is full; free some space"):
        ledger.record("a", "", "s", "p", "x" * 1_000_000, 0.0)


@pytest.mark.parametrize(
    ("number", "words"), [(28, "disk is full"), (30, "read-only"), (5, "gives errors")]
)
def test_faults_of_the_machine_end_the_run(tmp_path: Path, number: int, words: str) -> None:
    with (
        pytest.raises(VfmError, match=f"{tmp_path} cannot be written.*{words}"),
        writing_to(tmp_path),
    ):
        raise OSError(number, "as the kernel says it")
    with pytest.raises(OSError, match="too many"), writing_to(tmp_path):
        raise OSError(24, "too many open files")
