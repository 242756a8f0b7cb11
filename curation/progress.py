"""What a terminal shows of a run while it goes: a bar, and with an engine a table of its stages."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from common.pages import duration
from curation.engine.sight import Sight
from curation.pipeline import Executor


def progress_on(console: Console, executor: Executor | None = None) -> Progress:
    """On a terminal only. Where the executor has an engine, the time left is the engine's."""
    engine = executor is not None and executor.sight is not None
    # Items differ in length, so the time left is reckoned over minutes rather than moments.
    rest = [] if engine else [TextColumn("left"), TimeRemainingColumn()]
    return _Watched(
        executor,
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        *rest,
        console=console,
        transient=True,
        speed_estimate_period=300,
        disable=not console.is_terminal,
    )


class _Watched(Progress):
    """The bar, and what the engine sees at this moment."""

    def __init__(self, executor: Executor | None, *columns: ProgressColumn, **more: Any) -> None:
        self._executor = executor
        super().__init__(*columns, **more)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        sight = None if self._executor is None else self._executor.sight
        if sight is not None and sight.samples:
            yield stage_table(sight)
            yield from sentences(sight)


def stage_table(sight: Sight) -> Table:
    """The last sample: workers, queues, and the capacity of each stage in inputs per second."""
    table = Table("stage", box=None, pad_edge=False, header_style="dim")
    for head in ("busy", "waiting", "starting", "queue", "MiB", "done", "failed", "/s", "inputs/s"):
        table.add_column(head, justify="right")
    capacity = {line.step: line for line in sight.table}
    for name, seen in sight.samples[-1]["steps"].items():
        line = capacity.get(name)
        rates = (
            ["", ""] if line is None else [f"{line.tasks_per_s:.3g}", f"{line.inputs_per_s:.3g}"]
        )
        counts = [seen[key] for key in ("busy", "waiting", "starting", "queue")]
        mib = f"{seen['queue_bytes'] / 2**20:.0f}"
        shown = [*map(str, counts), mib, f"{seen['done']:,}", f"{seen['failed']:,}", *rates]
        table.add_row(name, *shown)
    return table


def sentences(sight: Sight) -> list[str]:
    """Time left, GPUs at work, and the bottleneck, as far as each is known."""
    last = sight.samples[-1]
    parts = []
    if last["left_s"] is not None:
        parts.append(f"about {duration(last['left_s'])} left")
    if last["gpus_busy"] is not None:
        parts.append(f"GPUs {last['gpus_busy']:.0%} busy")
    return [line for line in (", ".join(parts), sight.bottleneck()) if line]
