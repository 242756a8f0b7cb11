"""Limits that follow from what is wanted: a share of the footage, or a few clips labelled by hand.

Both work on columns: `values[score]` is `float64 [n]` over all clips, NaN where a measure is not
valid, which rejects nothing.
"""

import decimal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Limits = dict[str, float | None]


class Side(Protocol):
    """One limit of one score."""

    @property
    def score(self) -> str: ...
    @property
    def side(self) -> str: ...
    @property
    def setting(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Columns:
    """All clips of a folder, as far as limits go by them."""

    values: Mapping[str, np.ndarray]
    length_us: np.ndarray
    """`int64 [n]`"""
    decidable: np.ndarray
    """`bool [n]`: whether the limits decide; other clips are rejected whatever they are."""

    def rejected_by(self, rule: Side, limit: float | None) -> np.ndarray:
        """`bool [n]`"""
        values = self.values[rule.score]
        if limit is None:
            return np.zeros(len(values), bool)
        return values < limit if rule.side == "min" else values > limit

    def kept(self, rules: Sequence[Side], limits: Mapping[str, float | None]) -> np.ndarray:
        """`bool [n]`"""
        kept = self.decidable.copy()
        for rule in rules:
            kept &= ~self.rejected_by(rule, limits[rule.setting])
        return kept


def limits_for_yield(columns: Columns, rules: Sequence[Side], target: float) -> Limits:
    """Limits that keep a share of all seconds, each rejecting the same share of its clips.

    The clips are ranked by each score, worst first. All limits move through their ranks together,
    one clip of one score at a time, until what is kept is as near to the target as it gets; at
    least one clip stays. So the kept seconds are within one clip of the target, but for clips with
    equal values, which fall together, and for those that no limit decides on.

    Args:
        rules: the limits to choose.
        target: share of the seconds of all clips, 0 to 1.
    """
    num_clips = len(columns.decidable)
    falls_at = np.full(num_clips, np.inf)
    """When a clip meets the first limit that rejects it: rank, then place of the rule."""
    when: list[np.ndarray] = []
    for place, rule in enumerate(rules):
        values = columns.values[rule.score]
        known = columns.decidable & ~np.isnan(values)
        signed = values if rule.side == "min" else -values
        order = np.sort(signed[known])
        # Of equal values all fall with the last.
        rank = np.searchsorted(order, signed, side="right") / max(len(order), 1)
        at = np.where(known, rank + place * 1e-12, np.inf)
        when.append(at)
        falls_at = np.minimum(falls_at, at)

    open_ = np.flatnonzero(columns.decidable)
    order = open_[np.argsort(falls_at[open_], kind="stable")]
    times, first = np.unique(falls_at[order], return_index=True)
    after = np.cumsum(columns.length_us[order][::-1])[::-1]  # kept where the limits stop before it
    possible_us = after[first] if len(first) else np.zeros(0)
    wanted_us = target * columns.length_us.sum()
    stop = times[np.argmin(np.abs(possible_us - wanted_us))] if len(times) else np.inf

    limits: Limits = {}
    for rule, at in zip(rules, when, strict=True):
        values = columns.values[rule.score]
        passes = values[(at >= stop) & np.isfinite(at)]
        falls = values[at < stop]
        limits[rule.setting] = _between(rule.side, falls, passes)
    return limits


@dataclass(frozen=True, kw_only=True)
class Conflict(Exception):
    """Labels that no limits can reproduce."""

    keep: list[int]
    """Places of clips to keep that are rejected for another reason than a score."""
    reject: list[int]
    """Places of clips to reject that every limit must let pass, for the sake of those to keep."""


def limits_for_labels(
    columns: Columns, rules: Sequence[Side], limits: Mapping[str, float | None], keep: np.ndarray
) -> Limits:
    """Limits that reproduce labels, near to those given.

    First each limit gives way as far as the clips to keep need it. Then, for each clip to reject
    that still passes, one limit is drawn up to it: of those that no clip to keep forbids, the one
    that rejects the fewest further seconds. The mildest are taken first: a limit that is drawn up
    to one of them also rejects all that are worse.

    Args:
        limits: by setting, of all `rules`.
        keep: `int8 [n]`: 1 to keep, 0 to reject, -1 not labelled.
    Raises:
        Conflict: where labels contradict each other, given what the scores can tell apart.
    """
    wanted = keep == 1
    found: Limits = dict(limits)
    reach: dict[str, float] = {}
    """Per setting, how far a limit may be drawn."""
    for rule in rules:
        values = columns.values[rule.score]
        of_wanted = values[wanted & ~np.isnan(values)]
        least = rule.side == "min"
        if len(of_wanted):
            bound = float(of_wanted.min() if least else of_wanted.max())
        else:
            bound = math.inf if least else -math.inf
        reach[rule.setting] = bound
        limit = found[rule.setting]
        if limit is not None and (limit > bound if least else limit < bound):
            outside = values[values < bound] if least else values[values > bound]
            found[rule.setting] = _between(rule.side, outside, np.array([bound]))
    lost = np.flatnonzero(wanted & ~columns.decidable)
    stuck: list[int] = []
    for place in _mildest_first(columns, rules, keep):
        if not columns.kept(rules, found)[place]:
            continue
        choice = _cheapest(columns, rules, found, reach, place)
        if choice is None:
            stuck.append(place)
        else:
            found[choice[0]] = choice[1]
    if len(lost) or stuck:
        raise Conflict(keep=lost.tolist(), reject=sorted(stuck))
    return found


def _cheapest(
    columns: Columns,
    rules: Sequence[Side],
    limits: Limits,
    reach: Mapping[str, float],
    place: int,
) -> tuple[str, float] | None:
    """The limit that rejects one more clip at the least cost in seconds, or None."""
    kept = columns.kept(rules, limits)
    best: tuple[tuple[int, bool], str, float] | None = None
    for rule in rules:
        values = columns.values[rule.score]
        value = values[place]
        least = rule.side == "min"
        if not (value < reach[rule.setting] if least else value > reach[rule.setting]):
            continue  # also where it has no valid measure
        outside, inside = (
            (values[values <= value], values[values > value])
            if least
            else (values[values >= value], values[values < value])
        )
        limit = _between(rule.side, outside, inside)
        assert limit is not None
        cost_us = int(columns.length_us[kept & columns.rejected_by(rule, limit)].sum())
        # A limit that there is not yet is the last resort among equals.
        rank = (cost_us, limits[rule.setting] is None)
        if best is None or rank < best[0]:
            best = (rank, rule.setting, limit)
    return None if best is None else best[1:]


def _mildest_first(columns: Columns, rules: Sequence[Side], keep: np.ndarray) -> list[int]:
    """Places of the clips to reject, by the lowest rank that each has in any score, falling."""
    worst = np.ones(len(keep))
    for rule in rules:
        values = columns.values[rule.score]
        signed = values if rule.side == "min" else -values
        order = np.sort(signed[~np.isnan(signed)])
        rank = np.searchsorted(order, signed) / max(len(order), 1)
        worst = np.fmin(worst, np.where(np.isnan(signed), 1.0, rank))
    places = np.flatnonzero(keep == 0)
    return places[np.argsort(-worst[places], kind="stable")].tolist()


def _between(side: str, falls: np.ndarray, passes: np.ndarray) -> float | None:
    """The number with the fewest digits that rejects all of `falls` and lets all `passes` pass.

    None where there is neither. Past the last value it is the next number that there is.
    """
    if side == "max":
        mirrored = _between("min", -falls, -passes)
        return None if mirrored is None else -mirrored
    if not len(passes):
        return float(np.nextafter(falls.max(), math.inf)) if len(falls) else None
    high = float(passes.min())
    low = float(falls.max()) if len(falls) else -math.inf
    for digits in range(5 if math.isinf(low) else 1, 18):
        context = decimal.Context(prec=digits, rounding=decimal.ROUND_FLOOR)
        number = float(context.create_decimal(repr(high)))
        if low < number <= high:
            return number
    return high
