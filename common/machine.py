"""Faults of the machine, for which no item is to blame: they end the run and say what to do."""

import contextlib
import errno
from collections.abc import Iterator

from av.error import FFmpegError

from common.errors import VfmError
from common.store_path import Place

_FAULTS = {
    errno.ENOSPC: "its disk is full: free some space",
    errno.EDQUOT: "its quota is used up: free some space",
    errno.EFBIG: "no file may grow that large there: raise the limit (ulimit -f)",
    errno.EIO: "its disk gives errors: check it",
    errno.EROFS: "it is read-only: make it writable",
    errno.EACCES: "this user may not write there: change its permissions",
    errno.EPERM: "this user may not write there: change its permissions",
}


def is_machine_fault(error: OSError | FFmpegError) -> bool:
    """Whether an error met while writing is the machine's, by its number."""
    return error.errno in _FAULTS


@contextlib.contextmanager
def writing_to(folder: Place) -> Iterator[None]:
    """Turns such faults, met while writing to a folder, into `VfmError`s that name it."""
    try:
        yield
    except (OSError, FFmpegError) as error:
        if not is_machine_fault(error):
            raise
        fault = _FAULTS[error.errno or 0]
        raise VfmError(
            f"{folder} cannot be written, {fault}, or choose another output folder; "
            "the same command continues the run"
        ) from error
