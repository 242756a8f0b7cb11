"""Every second and every clip has one fate: kept, rejected for a reason, or failed for one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from curation.tables import ClipRow


@dataclass(frozen=True, kw_only=True)
class Fate:
    """A stretch of footage that never became a clip."""

    kind: str
    """`rejected` or `failed`."""
    reason: str
    duration_us: int


def account(
    duration_us: int, num_clips: int, clips: Sequence[ClipRow], others: Sequence[Fate]
) -> dict[str, Any]:
    """The accounting part of `summary.json`.

    Args:
        duration_us: of all sources together, counted apart from the clips.
        num_clips: likewise.
        others: footage without clips: lost to damage, duplicates, refused sources.
    Raises:
        AssertionError: where a microsecond or a clip is missing or counted twice; also under
            `python -O`.
    """
    seconds = {"kept": Counter[str](), "rejected": Counter[str](), "failed": Counter[str]()}
    counts = {"kept": Counter[str](), "rejected": Counter[str](), "failed": Counter[str]()}
    for clip in clips:
        if clip.kept:
            kind, reason = "kept", "kept"
        elif clip.failed_reason is not None:
            kind, reason = "failed", clip.failed_reason
        else:
            kind, reason = "rejected", str(clip.reject_reason)
        seconds[kind][reason] += clip.end_us - clip.start_us
        counts[kind][reason] += 1
    for fate in others:
        seconds[fate.kind][fate.reason] += fate.duration_us
    total_us = sum(sum(counter.values()) for counter in seconds.values())
    if total_us != duration_us:
        raise AssertionError(f"accounted for {total_us} of {duration_us} microseconds")
    if len(clips) != num_clips:
        raise AssertionError(f"accounted for {len(clips)} of {num_clips} clips")
    return {
        "seconds_in": duration_us / 1e6,
        "seconds_kept": seconds["kept"]["kept"] / 1e6,
        "seconds_rejected": _in_seconds(seconds["rejected"]),
        "seconds_failed": _in_seconds(seconds["failed"]),
        "clips_in": len(clips),
        "clips_kept": counts["kept"]["kept"],
        "clips_rejected": dict(sorted(counts["rejected"].items())),
        "clips_failed": dict(sorted(counts["failed"].items())),
    }


def _in_seconds(counter: Counter[str]) -> dict[str, float]:
    return {reason: us / 1e6 for reason, us in sorted(counter.items())}
