"""Ctrl-C and SIGTERM, turned into a request that the training loop answers between two steps."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console


class StopRequest:
    """`asked` becomes true, and stays so, once somebody wants the run to end."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def signals(self, console: Console) -> Iterator[None]:
        """Inside, the first Ctrl-C or SIGTERM only asks; a second Ctrl-C interrupts at once."""

        def handle(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if not self.asked:
                self.asked = True
                console.print("stopping once this step is done and saved; Ctrl-C again: at once")

        before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
