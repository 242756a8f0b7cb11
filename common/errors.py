"""Errors that speak to the user.

A `VfmError` carries one message that names the thing, the value and the mend. The command line
prints that message alone and exits with the error's `exit_code`; anything else is a defect of
ours and keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class VfmError(Exception):
    """The request was wrong or cannot be carried out here (exit code 2)."""

    exit_code = 2


class ConfigError(VfmError):
    """An unknown key or an impossible value in a configuration."""


class DataError(VfmError):
    """A shard, index or checkpoint that is missing, damaged or of another kind."""


class NothingProduced(VfmError):
    """The run ended without a single result (exit code 3)."""

    exit_code = 3


class MediaError(Exception):
    """One video that cannot be used. Never ends a run: the item fails alone, by name and reason.

    `reason` is a short slug for tables (`empty`, `no_moov`, `no_video_stream`, ...); `detail` is
    the sentence for people.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type["MediaError"], tuple[str, str]]:
        return MediaError, (self.reason, self.detail)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ` (did you mean 'blur.min'?)`, or an empty string when nothing is near."""
    by_lower = {k.lower(): k for k in reversed(list(known))}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.5)
    near = [by_lower[k] for k in close]
    if not near:
        return ""
    return " (did you mean " + " or ".join(f"'{n}'" for n in near) + "?)"
