"""One driver at a time on a folder of an object store, and what it keeps there. The S3 server is in
this process; drivers that die are real processes. No network, no video.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import VfmError
from common.store_path import StorePath
from curation.lease import Lease, held
from curation.ledger import KnownSource
from curation.store_ledger import StoreLedger
from tests.common.stores import new_bucket, s3

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import sys, time
from common.store_path import StorePath
from curation.lease import held
with held(StorePath(sys.argv[1]), beat_s=0.2, silent_s=2.0):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[StorePath]:
    with s3(monkeypatch) as address:
        new_bucket(address, "footage")
        yield StorePath("s3://footage/out")


def _holder(folder: StorePath) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_living_driver_is_named_and_a_dead_one_is_followed(folder: StorePath) -> None:
    holder = _holder(folder)
    try:
        with pytest.raises(VfmError, match=f"written by process {holder.pid} on .*wait for it"):
            Lease(folder, 2.0).take()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        began = time.monotonic()
        with held(folder, silent_s=60.0) as lease:
            lease.check()
        assert time.monotonic() - began < 30, "a dead process of this machine is known at once"
    finally:
        holder.kill()
        holder.wait()
    with held(folder, silent_s=60.0) as lease:
        lease.check()  # whoever ends in order leaves it free


def test_a_driver_of_another_machine_is_waited_for(folder: StorePath) -> None:
    lock = folder / "ledger" / "lock"
    lock.write_bytes(json.dumps({"pid": 1, "host": "far", "place": "x", "began": "1"}).encode())
    began = time.monotonic()
    with held(folder, silent_s=1.5):
        assert time.monotonic() - began >= 1.5, "for as long as a holder may be silent"


def test_a_driver_that_slept_too_long_writes_nothing_more(folder: StorePath) -> None:
    slow = Lease(folder, 1.0)
    slow.take()
    ledger = StoreLedger(folder / "ledger", slow)
    ledger.record("ab", "", "s", "p", 1, 0.0)
    slow._me["place"] = "another machine"
    slow._beat()
    with held(folder, silent_s=1.0) as other:
        with pytest.raises(VfmError, match=f"taken over by process {os.getpid()} on"):
            ledger.record("cd", "", "s", "p", 1, 0.0)
        slow.release()  # which must not free what is the other's
        other.check()
        other._beat()
        other.check()
        assert StoreLedger(folder / "ledger", other).recorded("s", "p") == {"ab"}


def test_of_many_who_come_at_once_one_wins(folder: StorePath) -> None:
    (folder / "ledger" / "lock").write_bytes(b'{"free": true}')
    won: list[Lease] = []
    refused: list[str] = []

    def come() -> None:
        lease = Lease(folder, 3.0)
        try:
            lease.take()
        except VfmError as error:
            refused.append(str(error))
            return
        won.append(lease)
        for _ in range(30):
            time.sleep(0.2)
            lease.beat()

    threads = [threading.Thread(target=come) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(refused) == 4 and all("process" in told for told in refused)


def test_a_ledger_gives_back_what_it_was_given(folder: StorePath) -> None:
    source = KnownSource(
        video_id="ab", source="a.mp4", path="p", duplicate=False, captions={"x": 1}
    )
    with held(folder) as lease:
        ledger = StoreLedger(folder / "ledger", lease)
        ledger.remember_file("p", 3, 4, "ab12")
        with ledger.together():
            ledger.remember_source(source)
            ledger.record("ab12", "0-1", "cut", "p1", {"n": 1}, 0.5)
            ledger.record("ab12", "1-2", "cut", "p1", {"n": 2}, 0.5)
        ledger.record("ab12", "1-2", "cut", "p1", {"n": 3}, 0.5)
        ledger.record("ab12", "", "see", "p2", {"n": 4}, 0.5)
        ledger.record("cd34", "", "see", "p2", {"n": 5}, 0.5)
        ledger.set_meta("config", {"a": [1, None]})
    with held(folder) as lease:
        again = StoreLedger(folder / "ledger", lease)
        assert again.known_file("p", 3, 4) == "ab12"
        assert again.known_file("p", 3, 5) is None
        assert again.sources() == [source]
        assert again.recall("ab12", "0-1", "cut", "p1") == {"n": 1}
        assert again.recall("ab12", "1-2", "cut", "p1") == {"n": 3}, "the latest counts"
        assert again.recall("ab12", "2-3", "cut", "p1") is None
        assert again.recorded("see", "p2") == {"ab12", "cd34"}
        assert list(again.recall_all(["cd34", "ab12"], "see", "p2")) == [
            ("cd34", {"n": 5}),
            ("ab12", {"n": 4}),
        ]
        assert again.recorded_of("ab12", "", "see") == [{"n": 4}]
        assert again.meta("config") == {"a": [1, None]}
        again.forget_source(source)
        with again.together():
            pass
        assert StoreLedger(folder / "ledger", lease).sources() == []
