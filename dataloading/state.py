"""The loader's state: small, readable as JSON, and free of ranks, workers and world size."""

from dataclasses import dataclass, field
from typing import Any

from common.errors import DataError

STATE_VERSION = 2
_KEYS = ("version", "identity", "sources", "next_pack", "pool", "ready", "skipped")

Waiting = tuple[int, int, int]
"""A sample that was drawn and not delivered: clip's ordinal, its epoch, the pack it entered at."""


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """Where the global stream of packs stands: everything before `next_pack` was delivered."""

    sources: tuple[tuple[int, int, int], ...] = ()
    """For each folder: epoch, clips of its order that were drawn, and credit in the blend; empty
    at the start.
    """
    next_pack: int = 0
    pool: tuple[Waiting, ...] = ()
    """Samples waiting for a pack, oldest first."""
    ready: tuple[tuple[Waiting, ...], ...] = ()
    """Packs that were planned together with delivered ones, and are next."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Clips that could not be read, and why. A record only: it changes nothing that follows."""
    worker: tuple[int, int] | None = None
    """Number of the `DataLoader` worker that delivered last, and of how many; none outside."""

    def to_dict(self, identity: dict[str, Any]) -> dict[str, Any]:
        raw: dict[str, Any] = {
            "version": STATE_VERSION,
            "identity": identity,
            "sources": [list(entry) for entry in self.sources],
            "next_pack": self.next_pack,
            "pool": [list(entry) for entry in self.pool],
            "ready": [[list(entry) for entry in pack] for pack in self.ready],
            "skipped": dict(self.skipped),
        }
        return raw if self.worker is None else {**raw, "worker": list(self.worker)}

    @staticmethod
    def from_dict(
        raw: dict[str, Any], identity: dict[str, Any], *, accept_changes: bool = False
    ) -> "LoaderState":
        """Raises `DataError` with the reason where the state belongs to another stream.

        With `accept_changes` one of other settings is taken as it is, and of one of other data
        what still has a meaning: the number of the next pack, and the epochs, each the one after.
        """
        missing = [key for key in _KEYS if key not in raw]
        if missing and raw.get("version") in (None, STATE_VERSION):
            raise DataError(f"this is no loader state: it lacks {', '.join(missing)}")
        if raw["version"] != STATE_VERSION:
            raise DataError(
                f"the loader state has version {raw['version']}, this vfm reads {STATE_VERSION}; "
                "resume with the vfm that saved it"
            )
        if not accept_changes:
            _check_identity(raw["identity"], identity)
        worker = raw.get("worker")
        state = LoaderState(
            sources=tuple((e, c, credit) for e, c, credit in raw["sources"]),
            next_pack=raw["next_pack"],
            pool=tuple(_waiting(raw["pool"])),
            ready=tuple(tuple(_waiting(pack)) for pack in raw["ready"]),
            skipped=dict(raw["skipped"]),
            worker=None if worker is None else (worker[0], worker[1]),
        )
        if raw["identity"].get("data") == identity.get("data"):
            return state
        newest = max((epoch for epoch, _, _ in state.sources), default=-1)
        num_sources = 1 if identity["split"] == "val" else len(identity["data"])
        return LoaderState(sources=((newest + 1, 0, 0),) * num_sources, next_pack=state.next_pack)


def _waiting(entries: list[list[int]]) -> list[Waiting]:
    return [(ordinal, epoch, entered) for ordinal, epoch, entered in entries]


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
