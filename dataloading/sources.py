"""Where samples come from: each folder's clips in the order of its epochs, and their blend."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from dataloading.order import Block

_CHUNK = 512
_SHARE_BITS = 20


class Order(Protocol):
    """An epoch's order of clips; `dataloading.order` has the forms."""

    endless: bool

    def __len__(self) -> int: ...

    def block(self, epoch: int, position: int) -> Block: ...


class Sample(NamedTuple):
    """One clip in one epoch; which window it gives is a function of these."""

    ordinal: int
    epoch: int
    stage: int
    """Of the curriculum, when it was drawn."""
    candidate: int
    """Which of the candidate lengths."""
    tokens: int
    """0 where the stage has no window for the clip."""
    entered: int
    """The first pack it could have gone into, in the order of planning."""


Draw = Callable[[np.ndarray, int, int], list[Sample]]
"""(ordinals, epoch, stage) to samples."""


class Source:
    """The samples of one folder, epoch after epoch; `epoch` and `cursor` are all its state."""

    def __init__(self, order: Order, draw: Draw) -> None:
        self._order = order
        self._draw = draw
        self.restore(0, 0)

    def restore(self, epoch: int, cursor: int) -> None:
        """Continues there, at a cost that does not depend on how far it is."""
        self.epoch, self.cursor = epoch, cursor
        self._block: Block | None = None
        self._drawn: list[Sample] = []
        self._drawn_at = (-1, -1, -1)

    def next(self, stage: int) -> Sample | None:
        """The next clip that has a window in this stage; none where a finite order is used up.

        Clips that have none are passed over, and have had their turn in this epoch.
        """
        while (sample := self._step(stage)) is not None:
            if sample.tokens:
                return sample
        return None

    def _step(self, stage: int) -> Sample | None:
        if self.cursor == len(self._order):
            if not self._order.endless:
                return None
            self.epoch, self.cursor = self.epoch + 1, 0
        block = self._block
        if block is None or block.epoch != self.epoch or self.cursor >= block.end:
            block = self._block = self._order.block(self.epoch, self.cursor)
        place = self.cursor - block.start
        # Drawn some at a time: a block may be far more than is needed before the next save.
        chunk = place - place % _CHUNK
        at = (self.epoch, block.start + chunk, stage)
        if at != self._drawn_at:
            ordinals = block.ordinals[chunk : chunk + _CHUNK]
            self._drawn, self._drawn_at = self._draw(ordinals, self.epoch, stage), at
        self.cursor += 1
        return self._drawn[place - chunk]


class Blend:
    """Samples of several folders, each with its share, as evenly mixed as whole samples allow.

    A folder earns its share with every sample drawn and pays one for each that it gives; the one
    with the most credit gives the next. After n samples each has given its share of n to within
    one sample for each other folder.
    """

    def __init__(self, sources: list[Source], shares: list[list[float]]) -> None:
        """`shares`: for each stage, one number for each source."""
        self._sources = sources
        self._weights = [_whole(of) for of in shares]
        self.restore(())

    def restore(self, positions: tuple[tuple[int, int, int], ...]) -> None:
        """`positions` are those of `state`, or empty for the start."""
        positions = positions or ((0, 0, 0),) * len(self._sources)
        self._credit = [credit for _, _, credit in positions]
        for source, (epoch, cursor, _) in zip(self._sources, positions, strict=True):
            source.restore(epoch, cursor)

    def state(self) -> tuple[tuple[int, int, int], ...]:
        """Epoch, cursor and credit of each source."""
        pairs = zip(self._sources, self._credit, strict=True)
        return tuple((source.epoch, source.cursor, credit) for source, credit in pairs)

    def next(self, stage: int) -> Sample | None:
        weights = self._weights[stage]
        owed = [c + w for c, w in zip(self._credit, weights, strict=True)]
        giving = [i for i, weight in enumerate(weights) if weight]
        chosen = max(giving, key=lambda i: owed[i])
        sample = self._sources[chosen].next(stage)
        if sample is not None:
            owed[chosen] -= sum(weights)
            self._credit = owed
        return sample


def _whole(shares: list[float]) -> list[int]:
    """Shares as whole numbers, so that credits are exact on every machine and after any resume."""
    total = sum(shares)
    return [max(1, round(s / total * 2**_SHARE_BITS)) if s > 0 else 0 for s in shares]
