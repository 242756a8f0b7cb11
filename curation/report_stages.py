"""The stages of a run in its report: what each could do, the engine's series as charts, and every
change of a pool with its reason."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.pages import duration, table
from common.store_path import Place

MOST_SAMPLES = 600
"""Points of a chart; a longer run is thinned out evenly."""
MOST_DECISIONS = 500


@dataclass(kw_only=True)
class Series:
    """What an engine wrote of a run."""

    samples: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    num_decisions: int = 0


def read_series(path: Place) -> Series:
    """Line by line, so that a run of weeks fits into memory. A last line that a killed driver left
    half written is passed over; a run without an engine has none."""
    series = Series()
    if not path.exists():
        return series
    step = seen = 0
    with path.open("rb") if isinstance(path, Path) else io.BytesIO(path.read_bytes()) as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if "decision" in line:
                series.num_decisions += 1
                if len(series.decisions) < MOST_DECISIONS:
                    series.decisions.append(line)
                continue
            if seen % max(step, 1) == 0:
                series.samples.append(line)
            seen += 1
            if len(series.samples) >= 2 * MOST_SAMPLES:
                series.samples = series.samples[::2]
                step = 2 * max(step, 1)
    return series


def charts(series: Series) -> dict[str, Any] | None:
    """Lines for `engine.js`; None where nothing was seen."""
    if not series.samples:
        return None
    names = list(dict.fromkeys(name for line in series.samples for name in line["steps"]))

    def lines(key: str) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "points": [
                    [line["at_s"], line["steps"][name][key]]
                    for line in series.samples
                    if name in line["steps"]
                ],
            }
            for name in names
        ]

    gpus = [
        [line["at_s"], line["gpus_busy"]]
        for line in series.samples
        if line["gpus_busy"] is not None
    ]
    return {
        "workers": lines("busy"),
        "queues": lines("queue"),
        "gpus": [{"name": "GPUs at work", "points": gpus}],
    }


def stage_section(summary: Mapping[str, Any], series: Series) -> str:
    """The section's markup; empty where nothing is known of the stages."""
    stages: Mapping[str, Mapping[str, Any]] = summary.get("stages", {})
    if not stages and not series.samples:
        return ""
    rows = [
        [
            name,
            f"{stage['items']:,}",
            f"{stage['workers']:,}",
            f"{stage['tasks_per_s']:.3g}",
            f"{stage['workers'] * stage['tasks_per_s']:.3g}",
            duration(stage["wall_s"]),
        ]
        for name, stage in stages.items()
    ]
    heads = ["Stage", "Items", "Workers", "Items/s of one", "Items/s of all", "Work"]
    capacity = table(heads, rows, numeric=True) if rows else ""
    drawn = (
        '<div id="workers-chart" class="wide-gap"><h3>Workers at work</h3></div>'
        '<div id="queues-chart" class="wide-gap"><h3>Items that wait</h3></div>'
        '<div id="gpus-chart" class="wide-gap"><h3>GPUs at work</h3></div>'
        if series.samples
        else ""
    )
    changes = [
        [duration(line["at_s"]), line["decision"], line["reason"]] for line in series.decisions
    ]
    more = series.num_decisions - len(changes)
    told = (
        f"<details><summary>Every change of a pool, {series.num_decisions:,} in all</summary>"
        f"{table(['After', 'Change', 'Reason'], changes)}"
        f"{f'<p>{more:,} more are in <code>report/engine.jsonl</code>.</p>' if more else ''}"
        "</details>"
        if changes
        else ""
    )
    return f'<section class="wrap" id="stages"><h2>Stages</h2>{capacity}{drawn}{told}</section>\n'
