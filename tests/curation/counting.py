"""Items and results that tests of the executors share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from curation.stage import Failure


@dataclass(frozen=True, kw_only=True)
class Number:
    """An item that is a number and weighs something."""

    value: int
    weight: bytes = b""

    @property
    def content_id(self) -> str:
        return f"n{self.value}"

    @property
    def span(self) -> str:
        return ""

    @property
    def label(self) -> str:
        return str(self.value)


def numbers(count: int) -> list[Number]:
    return [Number(value=value) for value in range(count)]


def comparable(results: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Numbers and failures in an order of their own."""
    return sorted(
        (r.content_id, r.stage, r.attempts, r.reason, r.detail, r.lasting, r.traceback)
        if isinstance(r, Failure)
        else (r.content_id, r.weight)
        for r in results
    )
