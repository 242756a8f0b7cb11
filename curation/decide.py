"""Which clips are kept, from the stored scores alone.

A limit may be a percentile, or follow from a share to keep or from labels, so that a decision
depends on all clips together: first every score, then `decide`, then clip by clip
`Decision.reject_reason`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from common.errors import ConfigError
from curation.config import CurateConfig
from curation.fit import Columns, Conflict, limits_for_labels, limits_for_yield
from curation.labels import read_labels
from curation.limits import Limit, resolved
from curation.scores import Score
from curation.shots import longest_held_us


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One limit of one score, and the reason that it gives."""

    score: str
    side: str
    """`min` or `max`."""
    setting: str
    """Its key in the configuration."""
    reason: str


RULES = (
    Rule(score="luma", side="min", setting="dark.min", reason="dark"),
    Rule(score="luma", side="max", setting="bright.max", reason="bright"),
    Rule(score="blur", side="min", setting="blur.min", reason="blur"),
    Rule(score="blur", side="max", setting="blur.max", reason="oversharp"),
    Rule(score="text_overlay", side="max", setting="text_overlay.max", reason="text_overlay"),
    Rule(score="text_moving", side="max", setting="text_overlay.max_moving", reason="text_overlay"),
    Rule(score="freeze", side="max", setting="freeze.max", reason="static"),
    Rule(score="freeze_s", side="max", setting="freeze.max_s", reason="static"),
    Rule(score="jitter", side="max", setting="jitter.max", reason="jitter"),
    Rule(score="motion", side="min", setting="motion.min", reason="low_motion"),
    Rule(score="motion", side="max", setting="motion.max", reason="high_motion"),
    Rule(score="contrast", side="min", setting="contrast.min", reason="flat"),
    Rule(score="crushed", side="max", setting="crushed.max", reason="crushed"),
    Rule(score="blown", side="max", setting="blown.max", reason="blown"),
    Rule(score="letterbox", side="max", setting="letterbox.max", reason="letterbox"),
    Rule(score="slideshow", side="max", setting="slideshow.max", reason="slideshow"),
    Rule(
        score="duplicate_frames",
        side="max",
        setting="duplicate_frames.max",
        reason="duplicate_frames",
    ),
    Rule(score="flashes", side="max", setting="flashes.max", reason="flashes"),
    Rule(score="logo", side="max", setting="logo.max", reason="logo"),
    Rule(score="camera_speed", side="min", setting="camera.min", reason="static_camera"),
    Rule(score="camera_speed", side="max", setting="camera.max", reason="fast_camera"),
    Rule(score="blockiness", side="max", setting="blockiness.max", reason="blockiness"),
    Rule(score="bits_per_pixel", side="min", setting="bits_per_pixel.min", reason="low_bitrate"),
)
"""In this order; the first that a clip breaks is its reason."""


class Decidable(Protocol):
    """What a clip must tell of itself to be decided on."""

    @property
    def clip_id(self) -> str: ...
    @property
    def start_us(self) -> int: ...
    @property
    def end_us(self) -> int: ...
    @property
    def num_frames(self) -> int: ...
    @property
    def scores(self) -> Mapping[str, Score]: ...


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A configuration with its percentiles resolved."""

    min_clip_us: int
    max_clip_us: int
    typed: dict[str, Limit]
    """By setting, such as `motion.min`."""
    limits: dict[str, float | None]
    """The same in the scores' units."""
    wanted: tuple[str, Any] | None = None
    """The setting that the limits follow from, and its value; None where they are as typed."""

    def reject_reason(self, clip: Decidable) -> str | None:
        """Why a clip is rejected, or None. A score that is not valid rejects nothing."""
        reason = self.by_length(clip)
        if reason is not None:
            return reason
        for rule in RULES:
            limit, score = self.limits[rule.setting], clip.scores[rule.score]
            if limit is None or not score.valid:
                continue
            if score.value < limit if rule.side == "min" else score.value > limit:
                return rule.reason
        return None

    def by_length(self, clip: Decidable) -> str | None:
        """Why a clip is rejected whatever its scores are, or None."""
        length_us = clip.end_us - clip.start_us
        if clip.num_frames == 1 and length_us > longest_held_us(self.max_clip_us):
            return "sparse"
        return "short" if length_us < self.min_clip_us else None

    def facts(self) -> dict[str, Any]:
        """What `summary.json` says of it; `decided_by` names the setting that the limits follow
        from, if they are not what was typed."""
        by = None if self.wanted is None else {"setting": self.wanted[0], "value": self.wanted[1]}
        return {"thresholds": self.thresholds(), "decided_by": by}

    def thresholds(self) -> dict[str, dict[str, Any]]:
        """The bounds by score, as they stand in `summary.json`; `typed` is what was asked for."""
        found: dict[str, dict[str, Any]] = {}
        for rule in RULES:
            none = {"min": None, "max": None}
            sides = found.setdefault(rule.score, {**none, "typed": {**none}})
            sides[rule.side] = self.limits[rule.setting]
            sides["typed"][rule.side] = self.typed[rule.setting]
        return found


def typed_limits(config: CurateConfig) -> dict[str, Limit]:
    """All limits by setting, as they were asked for."""
    pairs = {rule.setting: rule.setting.split(".") for rule in RULES}
    return {key: getattr(getattr(config, section), side) for key, (section, side) in pairs.items()}


def decide(
    config: CurateConfig,
    clips: Iterable[Decidable],
    fixed: Mapping[str, float | None] | None = None,
) -> Decision:
    """Resolves the limits over all clips: percentiles, then a yield or labels.

    Args:
        fixed: what the limits were resolved to before, where that stays; those that there were
            not yet limit nothing.
    Raises:
        ConfigError: where no value can be within two limits of a score, or labels are wrong or
            contradict each other.
    """
    typed = typed_limits(config)
    decision = Decision(
        min_clip_us=round(config.min_clip_s * 1e6),
        max_clip_us=round(config.max_clip_s * 1e6),
        typed=typed,
        limits={setting: fixed.get(setting) for setting in typed} if fixed is not None else {},
        wanted=_wanted(config),
    )
    if fixed is None:
        decision = replace(decision, limits=_resolved(config, decision, list(clips)))
    _check_order(decision)
    return decision


def _wanted(config: CurateConfig) -> tuple[str, Any] | None:
    """The setting that the limits follow from, if they are not what was typed."""
    if config.target_yield is not None:
        return "target_yield", config.target_yield
    return None if config.labels is None else ("labels", config.labels)


def _resolved(
    config: CurateConfig, decision: Decision, clips: Sequence[Decidable]
) -> dict[str, float | None]:
    columns = _columns(decision, clips)
    valid = {name: values[~np.isnan(values)] for name, values in columns.values.items()}
    limits = {r.setting: resolved(decision.typed[r.setting], r.side, valid[r.score]) for r in RULES}
    if config.target_yield is not None:
        active = [rule for rule in RULES if decision.typed[rule.setting] is not None]
        limits |= limits_for_yield(columns, active, config.target_yield)
    if config.labels is not None:
        path = Path(config.labels)
        limits = _fitted(columns, limits, read_labels(path), clips, path)
    return limits


def _fitted(
    columns: Columns,
    limits: dict[str, float | None],
    labels: Mapping[str, bool],
    clips: Sequence[Decidable],
    path: Path,
) -> dict[str, float | None]:
    ids = [clip.clip_id for clip in clips]
    unknown = sorted(labels.keys() - set(ids))
    if unknown:
        raise ConfigError(
            f"labels={path}: no clip here is called {_some(unknown)}: labels of another folder?"
        )
    keep = np.array([-1 if i not in labels else int(labels[i]) for i in ids], np.int8)
    try:
        return limits_for_labels(columns, RULES, limits, keep)
    except Conflict as conflict:
        said = []
        if conflict.keep:
            names = _some([ids[place] for place in conflict.keep])
            said.append(f"{names} cannot be kept, being too short or sparse")
        if conflict.reject:
            names = _some([ids[place] for place in conflict.reject])
            said.append(
                f"{names} cannot be rejected: on every score it lies among the clips to keep"
            )
        raise ConfigError(
            f"labels={path} contradict each other: {'; '.join(said)}. Take some back"
        ) from conflict


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _columns(decision: Decision, clips: Sequence[Decidable]) -> Columns:
    names = {rule.score for rule in RULES}
    return Columns(
        values={
            name: np.array(
                [s.value if (s := clip.scores[name]).valid else np.nan for clip in clips],
                np.float64,
            )
            for name in sorted(names)
        },
        length_us=np.array([clip.end_us - clip.start_us for clip in clips], np.int64),
        decidable=np.array([decision.by_length(clip) is None for clip in clips], bool),
    )


def _check_order(decision: Decision) -> None:
    lowest = {rule.score: rule.setting for rule in RULES if rule.side == "min"}
    highest = {rule.score: rule.setting for rule in RULES if rule.side == "max"}
    for score in lowest.keys() & highest.keys():
        low, high = decision.limits[lowest[score]], decision.limits[highest[score]]
        if low is not None and high is not None and low > high:
            raise ConfigError(
                f"{_said(decision, lowest[score])} is above {_said(decision, highest[score])}: "
                "no clip can keep to both"
            )


def _said(decision: Decision, setting: str) -> str:
    typed, limit = decision.typed[setting], decision.limits[setting]
    if decision.wanted is not None:
        return f"{setting}={limit:g}, by {decision.wanted[0]}={decision.wanted[1]},"
    return f"{setting}={typed}" + (f" ({limit:g} here)" if isinstance(typed, str) else "")
