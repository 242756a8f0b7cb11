"""Limits of scores: an absolute value, a percentile of what was measured, or none."""

import decimal
import math
import re
from collections.abc import Sequence

import numpy as np

from common.errors import ConfigError

Limit = float | str | None
"""A number in the score's unit; `p20`, which is the 20th percentile of the valid scores of all
clips of the folder; or null, which is no limit."""


def need(condition: bool, key: str, value: object, rule: str) -> None:
    """Refuses a setting in one line that names it."""
    if not condition:
        raise ConfigError(f"{key}={value} is impossible: {rule}")


def percentile_of(limit: Limit) -> float | None:
    """20.0 of `p20`; None of what is no percentile."""
    match = re.fullmatch(r"p(\d{1,3}(?:\.\d+)?)", limit) if isinstance(limit, str) else None
    return float(match[1]) if match and float(match[1]) <= 100 else None


def need_limits(
    section: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    **limits: Limit,
) -> None:
    """Refuses what is no limit, and those that no clip could keep to.

    Args:
        section: whose settings these are, for the message.
        least, most: what the score can be.
        limits: by name; `min` and `max` are compared with each other.
    """
    for name, limit in limits.items():
        key = f"{section}.{name}"
        if isinstance(limit, str):
            rule = "a number, a percentile such as p20 (p0 to p100), or null"
            need(percentile_of(limit) is not None, key, limit, rule)
        elif limit is not None:
            need(least <= limit <= most, key, limit, _range(least, most))
    low, high = limits.get("min"), limits.get("max")
    ranks = percentile_of(low), percentile_of(high)
    low, high = ranks if None not in ranks else (low, high)
    if isinstance(low, int | float) and isinstance(high, int | float):
        shown = limits["min"], limits["max"]
        need(low <= high, f"{section}.min", shown[0], f"above {section}.max={shown[1]}")


def resolved(limit: Limit, side: str, values: Sequence[float] | np.ndarray) -> float | None:
    """The number that a limit stands for; None is no limit, as a percentile of nothing is.

    Percentiles are interpolated linearly and rounded to five digits, away from the clips that they
    keep: whoever stands at the limit stays, also where scores are shown rounded.

    Args:
        side: `min` or `max`.
        values: the valid scores of all clips.
    """
    rank = percentile_of(limit)
    if rank is None:
        assert not isinstance(limit, str)
        return limit
    if not len(values):
        return None
    exact = float(np.percentile(np.asarray(values, np.float64), rank))
    rounding = decimal.ROUND_FLOOR if side == "min" else decimal.ROUND_CEILING
    # Fifteen digits first: past those is the noise of interpolation.
    return float(decimal.Context(prec=5, rounding=rounding).create_decimal(f"{exact:.15g}"))


def _range(least: float, most: float) -> str:
    if math.isinf(most):
        return "any number" if math.isinf(least) else f"at least {least:g}"
    return f"{least:g} to {most:g}"
