"""The loader's state: small, readable as JSON, and free of ranks, workers and world size."""

from dataclasses import dataclass, field
from typing import Any

from common.errors import DataError

STATE_VERSION = 1
_KEYS = ("version", "identity", "epoch", "cursor", "next_pack", "pool", "skipped")


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """Where the global stream of packs stands: everything before `next_pack` was delivered."""

    epoch: int = 0
    cursor: int = 0
    """Clips of the epoch's order that have entered the pool."""
    next_pack: int = 0
    pool: tuple[tuple[int, int, int], ...] = ()
    """Samples waiting, oldest first: clip's ordinal, its epoch, the pack at which it entered."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Clips that could not be read, and why. A record only: it changes nothing that follows."""

    def to_dict(self, identity: dict[str, Any]) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "identity": identity,
            "epoch": self.epoch,
            "cursor": self.cursor,
            "next_pack": self.next_pack,
            "pool": [list(entry) for entry in self.pool],
            "skipped": dict(self.skipped),
        }

    @staticmethod
    def from_dict(raw: dict[str, Any], identity: dict[str, Any]) -> "LoaderState":
        """Raises `DataError` with the reason where the state belongs to another stream."""
        missing = [key for key in _KEYS if key not in raw]
        if missing:
            raise DataError(f"this is no loader state: it lacks {', '.join(missing)}")
        if raw["version"] != STATE_VERSION:
            raise DataError(
                f"the loader state has version {raw['version']}, this vfm reads {STATE_VERSION}; "
                "resume with the vfm that saved it"
            )
        _check_identity(raw["identity"], identity)
        return LoaderState(
            epoch=raw["epoch"],
            cursor=raw["cursor"],
            next_pack=raw["next_pack"],
            pool=tuple((o, e, k) for o, e, k in raw["pool"]),
            skipped=dict(raw["skipped"]),
        )


def merge_skipped(states: list[dict[str, Any]]) -> dict[str, Any]:
    """One state from those of all ranks: they differ in nothing but what each could not read.

    Raises `DataError` where they differ otherwise, which means that ranks are out of step.
    """
    merged = {**states[0], "skipped": {}}
    for state in states:
        differing = [k for k in _KEYS if k != "skipped" and state[k] != merged[k]]
        if differing:
            raise DataError(
                f"loader states of the ranks differ in {', '.join(differing)} (next_pack "
                f"{state['next_pack']} and {merged['next_pack']}): save all at the same step"
            )
        merged["skipped"].update(state["skipped"])
    return merged


def _check_identity(saved: dict[str, Any], current: dict[str, Any]) -> None:
    changed = [
        f"{name} was {saved.get(name)!r} and is now {current.get(name)!r}"
        for name in sorted({*saved, *current})
        if saved.get(name) != current.get(name)
    ]
    if changed:
        raise DataError(
            f"the loader cannot continue a stream of other packs: {'; '.join(changed)}. Restore "
            "with the saved settings and data, or start the data afresh without its state"
        )
