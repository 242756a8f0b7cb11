"""One driver at a time on a folder of an object store, where no kernel keeps locks.

The lock is an object that its holder rewrites every few seconds, each time on the condition that
nobody else has. Who finds one waits until it changes, which shows a living holder, or until it has
not for longer than a holder may be silent, and then replaces it on the same condition: of two who
try, one succeeds. No clocks are compared. A holder that was stopped for so long, say with its
machine, asks again before it writes anything more, and ends where the lock is no longer its own.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.errors import VfmError
from common.store_path import StorePath, Tag

BEAT_S = 5.0
SILENT_S = 30.0
"""After so long without a beat a holder counts as gone."""
_WATCH_S = 0.25


class Lease:
    """The lock of one folder, held. Use `held`."""

    def __init__(self, folder: StorePath, silent_s: float) -> None:
        self._path = folder / "ledger" / "lock"
        self._folder = folder
        self._silent_s = silent_s
        self._me = {**_identity(), "token": secrets.token_hex(8)}
        self._beats = 0
        self._tag: Tag
        self._beaten_s = 0.0
        self._turn = threading.Lock()
        self._taken_by: str | None = None

    def take(self) -> None:
        """Raises `VfmError` that names the holder where one is alive."""
        while True:
            began = _now_s()
            tag = self._path.create(self._content())
            if tag is None:
                tag = self._inherit()
            if tag is not None:
                self._tag, self._beaten_s = tag, began
                return

    def check(self) -> None:
        """To be called before every write. Raises `VfmError` where another driver has come."""
        with self._turn:
            if self._taken_by is None and _now_s() - self._beaten_s > self._silent_s / 2:
                self._beat()
            if self._taken_by is not None:
                raise VfmError(
                    f"{self._folder} has been taken over by {self._taken_by}, because this driver "
                    f"was silent for over {self._silent_s:g} s: leave it to that one"
                )

    def beat(self) -> None:
        """Shows that the holder lives. A store in trouble is not the end: `check` asks again."""
        with self._turn, contextlib.suppress(VfmError):
            self._beat()

    def release(self) -> None:
        """Says that nobody holds the folder any more, so that the next one need not wait. The
        object stays: were it removed, that might hit the lock of the next one."""
        with self._turn, contextlib.suppress(VfmError):
            self._path.replace_tagged(json.dumps({"free": True}).encode(), self._tag)

    def _beat(self) -> None:
        began = _now_s()
        self._beats += 1
        tag = self._path.replace_tagged(self._content(), self._tag)
        if tag is None:
            found = self._read()
            self._taken_by = _who(found[0]) if found else "someone who removed its lock"
        else:
            self._tag, self._beaten_s = tag, began

    def _content(self) -> bytes:
        return json.dumps({**self._me, "beats": self._beats}).encode()

    def _read(self) -> tuple[dict[str, Any], Tag] | None:
        try:
            data, tag = self._path.tagged()
        except FileNotFoundError:
            return None
        try:
            found = json.loads(data)
        except ValueError:
            found = {}
        return (found if isinstance(found, dict) else {}), tag

    def _inherit(self) -> Tag | None:
        """The lock of a holder that is gone; None where the way is free again."""
        found = self._read()
        if found is None:
            return None
        holder, tag = found
        began = _now_s()
        while not (holder.get("free") or _is_dead(holder)) and _now_s() - began < self._silent_s:
            time.sleep(_WATCH_S)
            again = self._read()
            if again is None:
                return None
            if again[1] != tag:
                if again[0].get("free"):
                    holder, tag = again
                    break
                raise VfmError(
                    f"{self._folder} is being written by {_who(again[0])}: wait for it, stop it, "
                    "or choose another output folder"
                )
        return self._path.replace_tagged(self._content(), tag)


@contextlib.contextmanager
def held(
    folder: StorePath, *, beat_s: float = BEAT_S, silent_s: float = SILENT_S
) -> Iterator[Lease]:
    """Holds a folder for one driver; see `Lease.take` and `Lease.check`."""
    lease = Lease(folder, silent_s)
    lease.take()
    done = threading.Event()

    def keep() -> None:
        while not done.wait(beat_s):
            lease.beat()

    thread = threading.Thread(target=keep, name="lease", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        done.set()
        thread.join()
        lease.release()


def _now_s() -> float:
    """Also counts the time for which the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _identity() -> dict[str, Any]:
    """This process, so that another on the same machine can tell whether it still runs."""
    pid = os.getpid()
    return {"pid": pid, "host": socket.gethostname(), "began": _began(pid), "place": _place()}


def _is_dead(holder: dict[str, Any]) -> bool:
    """True only where that is certain: a process of this machine that is not there any more."""
    place = _place()
    if not place or holder.get("place") != place or not holder.get("began"):
        return False
    return _began(int(holder["pid"])) != holder["began"]


def _place() -> str:
    """Names the running kernel and the space in which its process numbers hold."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116
    except OSError:
        return ""


def _began(pid: int) -> str:
    """When a process began, in ticks of its kernel; empty where there is none, or it has ended and
    is only waited for."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]


def _who(holder: dict[str, Any]) -> str:
    if "pid" not in holder:
        return "another process"
    return f"process {holder['pid']} on {holder.get('host')}"
