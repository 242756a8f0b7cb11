"""torch's `DataLoader` over a loader of ours, whose broken workers end in an error with a name.

    for batch in WorkerLoader(PackedLoader(...), num_workers=4):
        state = batch.loader_state

Torch on its own raises what it happened to be doing when a worker went away, such as a bare
`EOFError` from the connection that its tensors travelled through.
"""

import contextlib
import re
import signal
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from common.errors import ConfigError, DataError, MediaError, VfmError

_ENDED_WAIT_S = 2.0
_CAUGHT = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.")
_BROKEN = (EOFError, ConnectionError, FileNotFoundError, RuntimeError)
"""What torch raises where a worker is gone, or has not answered in `timeout_s`."""


class WorkerLoader(DataLoader[Any]):
    """The batches of a `PackedLoader` or a `SampleLoader`, made by worker processes.

    Args:
        num_workers: processes; 0 iterates in this one.
        ahead: batches that each worker makes ahead.
        timeout_s: in which a worker must deliver a batch; none bounds nothing but a storage, which
            each worker watches itself.

    Iterating raises `DataError` where a worker ends before its batches do, and whatever of our
    errors a worker raised, with the message alone.
    """

    def __init__(
        self,
        source: IterableDataset[Any],
        *,
        num_workers: int,
        ahead: int = 2,
        timeout_s: float | None = None,
    ) -> None:
        if num_workers < 0 or ahead < 1:
            raise ConfigError(f"{num_workers=} {ahead=}: at least 0 and 1 are needed")
        super().__init__(
            source,
            batch_size=None,
            num_workers=num_workers,
            prefetch_factor=ahead if num_workers else None,
            timeout=(timeout_s or 0) if num_workers else 0,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = super().__iter__()
        workers: list[BaseProcess] = list(getattr(batches, "_workers", []))
        # Around the whole, since torch speaks of a killed worker from a signal, wherever that is.
        try:
            yield from batches
        except (VfmError, MediaError) as error:
            raise _plain(error) from None
        except _BROKEN as error:
            raise self._named(error, workers) from error

    def _named(self, error: Exception, workers: list[BaseProcess]) -> Exception:
        """What happened, if it is the end of a worker; else the error itself."""
        ended = _ended(workers)
        if ended:
            why = "; ".join(ended)
            return DataError(
                f"{why}. Go on from the last saved state, with fewer workers if memory ran out"
            )
        if "timed out" in str(error):
            return DataError(
                f"no worker of the loader delivered a batch in timeout_s ({self.timeout:g})"
            )
        return error


def _ended(workers: list[BaseProcess]) -> list[str]:
    """Workers that were killed or failed, in sentences. A connection ends a moment before its
    process can be seen to, so that is waited for."""
    until = time.monotonic() + _ENDED_WAIT_S
    while True:
        codes = {n: w.exitcode for n, w in enumerate(workers) if w.exitcode}
        if codes or time.monotonic() > until:
            break
        # Torch raises out of this one as well, once it hears of the same.
        with contextlib.suppress(RuntimeError):
            time.sleep(0.02)
    return [
        f"worker {n} of the loader (process {workers[n].pid}) {_end(code)}"
        for n, code in codes.items()
    ]


def _end(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    out_of_memory = ", as the system does where memory runs out" if name == "SIGKILL" else ""
    return f"was killed by {name}{out_of_memory}"


def _plain(error: Exception) -> Exception:
    """An error of ours without the traceback that torch writes into its message."""
    text = str(error)
    found = _CAUGHT.search(text)
    if found is None:
        return error
    said = text.rstrip().rpartition(f"{type(error).__name__}: ")[2]
    return DataError(f"{said} (worker {found[1]} of the loader)")
