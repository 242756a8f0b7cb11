"""What a person sees while a run goes on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class RunProgress:
    """Progress bars on a terminal; a line now and then where output is not one."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bars = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}"),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False)

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Callable[[int, float], None]]:
        """A bar; the callable takes (done, value)."""
        bar = self._bars.add_task(name, total=total, detail="")

        def advance(done: int, value: float) -> None:
            self._bars.update(bar, completed=done, detail=f"{value:.4g}")

        yield advance
        self._bars.update(bar, visible=False)

    @contextmanager
    def training(self, start: int, total: int) -> Iterator[Callable[[int, float, float], None]]:
        """The bar of the training loop; the callable takes (step, loss, tokens_per_s)."""
        bar = self._bars.add_task("training", total=total, completed=start, detail="")
        every = max(total // 10, 1)

        def advance(step: int, loss: float, tokens_per_s: float) -> None:
            detail = f"loss {loss:.4f}  {tokens_per_s:,.0f} tokens/s"
            self._bars.update(bar, completed=step, detail=detail)
            if not self.console.is_terminal and step % every == 0:
                self.note(f"step {step}/{total}  {detail}")

        yield advance
