"""The plan: which samples make pack k, from metadata alone, alike on every rank.

The global stream of packs depends on data and settings only. Ranks take packs out of it by number,
so nothing here knows of ranks, threads, or of what could be decoded.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from common import rng
from dataloading.index import ClipTable
from dataloading.order import Block
from dataloading.packing import choose
from dataloading.split import Windows
from dataloading.state import LoaderState


class Order(Protocol):
    """An epoch's order of clips; `dataloading.order` has the forms."""

    endless: bool

    def __len__(self) -> int: ...

    def block(self, epoch: int, position: int) -> Block: ...


class Sample(NamedTuple):
    """One clip in one epoch; which window it gives is a function of these."""

    ordinal: int
    epoch: int
    candidate: int
    """Which of the candidate lengths."""
    tokens: int
    entered: int
    """The first pack it could have gone into."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    index: int
    samples: list[Sample]

    @property
    def tokens(self) -> int:
        return sum(sample.tokens for sample in self.samples)


class Planner:
    """Draws packs one after another; its state can be taken and set between any two."""

    def __init__(
        self,
        table: ClipTable,
        windows: Windows,
        order: Order,
        *,
        seed: int,
        token_budget: int,
        pool_size: int,
        max_age: int,
    ) -> None:
        self._table = table
        self._windows = windows
        self._order = order
        self._seed = seed
        self._token_budget = token_budget
        self._pool_size = pool_size
        self._max_age = max_age
        self.restore(LoaderState())

    def restore(self, state: LoaderState) -> None:
        """Continues at `state`, at a cost that does not depend on how far it is."""
        self._epoch, self._cursor, self._next_pack = state.epoch, state.cursor, state.next_pack
        self._block: Block | None = None
        self._drawn: list[Sample] = []
        ordinals_of = defaultdict(list)
        for ordinal, epoch, _ in state.pool:
            ordinals_of[epoch].append(ordinal)
        drawn = {
            (sample.ordinal, sample.epoch): sample
            for epoch, ordinals in ordinals_of.items()
            for sample in self.draw(np.array(ordinals), epoch)
        }
        self._pool = [drawn[o, e]._replace(entered=k) for o, e, k in state.pool]

    def state(self) -> LoaderState:
        """The state after the packs drawn so far; the ledger of skipped clips is not kept here."""
        return LoaderState(
            epoch=self._epoch,
            cursor=self._cursor,
            next_pack=self._next_pack,
            pool=tuple((s.ordinal, s.epoch, s.entered) for s in self._pool),
        )

    def next_pack(self) -> Pack | None:
        """The next pack; none when a finite order is used up."""
        while len(self._pool) < self._pool_size and (sample := self._next_sample()) is not None:
            self._pool.append(sample)
        if not self._pool:
            return None
        slack = [s.entered + self._max_age - self._next_pack for s in self._pool]
        chosen = choose([s.tokens for s in self._pool], slack, self._token_budget)
        pack = Pack(index=self._next_pack, samples=[self._pool[i] for i in chosen])
        taken = set(chosen)
        self._pool = [s for i, s in enumerate(self._pool) if i not in taken]
        self._next_pack += 1
        return pack

    def draw(self, ordinals: np.ndarray, epoch: int) -> list[Sample]:
        """The samples of these clips in this epoch: each takes one of the lengths that fit it."""
        ids = self._table.clip_ids(ordinals)
        keys = rng.keys(self._seed, "num_frames", step=epoch, sample_ids=ids)
        chance = rng.uniform(keys, torch.zeros(len(ids), dtype=torch.int64)).numpy()
        fitting = self._windows.starts[ordinals] > 0
        wanted = np.floor(chance * fitting.sum(axis=1)).astype(np.int64)
        # The column of the (wanted+1)-th true entry of each row.
        candidate = np.argmax(np.cumsum(fitting, axis=1) > wanted[:, None], axis=1)
        tokens = self._windows.tokens[ordinals, candidate]
        columns = (ordinals.tolist(), candidate.tolist(), tokens.tolist())
        return [Sample(o, epoch, c, t, -1) for o, c, t in zip(*columns, strict=True)]

    def _next_sample(self) -> Sample | None:
        if self._cursor == len(self._order):
            if not self._order.endless:
                return None
            self._epoch, self._cursor = self._epoch + 1, 0
        block = self._block
        if block is None or block.epoch != self._epoch or self._cursor >= block.end:
            block = self._block = self._order.block(self._epoch, self._cursor)
            self._drawn = self.draw(block.ordinals, self._epoch)
        sample = self._drawn[self._cursor - block.start]
        self._cursor += 1
        return sample._replace(entered=self._next_pack)
