"""The training curves of a page: loss by step, and validation by noise level.

A page that shows them takes the style sheet `curves.css` and the scripts `linechart.js` and
`curves.js`, and gives `curves` (`curves_data`) among its data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from common.pages.markup import figure, table

NUM_TABLE_ROWS = 40


@dataclass(frozen=True, kw_only=True)
class LossPoint:
    step: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class ValPoint:
    """Validation at one step; `per_sigma` maps a noise level to its loss and may be empty."""

    step: int
    loss: float
    per_sigma: dict[float, float]


def curves_data(loss: Sequence[LossPoint], val: Sequence[ValPoint]) -> dict[str, object]:
    """What the script draws."""
    return {
        "loss": [[point.step, point.loss] for point in loss],
        "val": [[point.step, point.loss] for point in val],
        "per_sigma": [
            {
                "sigma": sigma,
                "points": [
                    [point.step, point.per_sigma[sigma]]
                    for point in val
                    if sigma in point.per_sigma
                ],
            }
            for sigma in _sigmas(val)
        ],
    }


def curves(loss: Sequence[LossPoint], val: Sequence[ValPoint]) -> str:
    """Markup of the curves, with every value in tables below them."""
    if not loss and not val:
        return '<p class="muted">No training step was recorded.</p>'
    told = "<p>The loss of single training steps is noisy, as each draws its own noise level; "
    told += (
        "validation uses the same clips and noise every time, so its values compare.</p>"
        if val
        else "the smoothed line is its running mean. Validation was not run.</p>"
    )
    parts = [
        told,
        '<div class="wide-gap" id="loss-chart"></div>',
        f"<details><summary>Loss as a table</summary>{_loss_table(loss, val)}</details>",
    ]
    if sigmas := _sigmas(val):
        heads = ["Step", *(f"\u03c3 {figure(sigma)}" for sigma in sigmas)]
        rows = [
            [f"{point.step:,}", *(_loss(point.per_sigma.get(sigma)) for sigma in sigmas)]
            for point in val
        ]
        parts.append(
            '<h3 class="wide-gap">Validation loss by noise level</h3><p class="small muted">'
            "&sigma; is the noise's standard deviation: where it is small the model repairs "
            "detail, where it is large it invents the scene.</p>"
            '<div class="wide-gap" id="sigma-chart"></div><details>'
            "<summary>Validation by noise level as a table</summary>"
            f"{table(heads, rows, numeric=True)}</details>"
        )
    return "".join(parts)


def _sigmas(val: Sequence[ValPoint]) -> list[float]:
    return sorted({sigma for point in val for sigma in point.per_sigma})


def _loss_table(loss: Sequence[LossPoint], val: Sequence[ValPoint]) -> str:
    """Every validated step, and training steps evenly spaced between first and last."""
    stride = max(1, math.ceil(len(loss) / NUM_TABLE_ROWS))
    train = {point.step: point.loss for point in loss}
    validated = {point.step: point.loss for point in val}
    steps = {point.step for point in loss[::stride]} | set(validated)
    rows = [
        [f"{step:,}", _loss(train.get(step)), _loss(validated.get(step))] for step in sorted(steps)
    ]
    return table(["Step", "Training", "Validation"], rows, numeric=True)


def _loss(value: float | None) -> str:
    return "" if value is None else figure(value)
