"""The plan: which samples make pack k, from metadata alone, alike on every rank.

The global stream of packs depends on data and settings only. Ranks take packs out of it by number,
so nothing here knows of ranks, threads, or of what could be decoded.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, replace

import numpy as np
import torch

from common import rng
from dataloading.index import ClipTable
from dataloading.packing import choose, choose_alike, cost_order
from dataloading.sources import Blend, Order, Sample, Source
from dataloading.split import Windows
from dataloading.state import LoaderState, Waiting


@dataclass(frozen=True, kw_only=True)
class Pack:
    index: int
    """Its number in the global order."""
    samples: list[Sample]

    @property
    def tokens(self) -> int:
        return sum(sample.tokens for sample in self.samples)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of the curriculum: `shares` has one number for each source."""

    from_pack: int
    windows: Windows
    shares: list[float]


@dataclass(frozen=True, kw_only=True)
class PackRules:
    """What packs are made by; see `LoaderConfig`. `window` is how many are planned at a time."""

    token_budget: int
    pool_size: int
    max_age: int
    window: int = 1
    alike: bool = False
    """Whether all samples of a pack have one shape."""


class Planner:
    """Draws packs one after another; its state can be taken and set between any two."""

    def __init__(
        self,
        table: ClipTable,
        stages: list[Stage],
        orders: list[Order],
        *,
        seed: int,
        rules: PackRules,
    ) -> None:
        self._table = table
        self._stages = stages
        self._starts = [stage.from_pack for stage in stages]
        self._seed = seed
        self._rules = rules
        sources = [Source(order, self.draw) for order in orders]
        self._blend = Blend(sources, [stage.shares for stage in stages])
        self.restore(LoaderState())

    def restore(self, state: LoaderState) -> None:
        """Continues at `state`, at a cost that does not depend on how far it is."""
        self._blend.restore(state.sources)
        self._planned = state.next_pack + len(state.ready)
        waiting = [*state.pool, *(entry for pack in state.ready for entry in pack)]
        drawn = self._drawn_again(waiting)
        self._pool = [drawn[entry] for entry in state.pool if entry in drawn]
        self._ready = deque(
            Pack(index=state.next_pack + i, samples=[drawn[entry] for entry in entries])
            for i, entries in enumerate(state.ready)
        )

    def restore_changed(self, state: LoaderState) -> None:
        """Like `restore`, where settings differ from those of the state: the samples that it holds
        are drawn anew and wait in the pool; those without a window now are left out.
        """
        released = sorted(
            [*state.pool, *(entry for pack in state.ready for entry in pack)],
            key=lambda entry: entry[2],
        )
        kept = self._drawn_again(released)
        self.restore(replace(state, ready=(), pool=tuple(e for e in released if e in kept)))

    def state(self) -> LoaderState:
        """The state after the packs drawn so far; the ledger of skipped clips is not kept here."""
        return LoaderState(
            sources=self._blend.state(),
            next_pack=self._planned - len(self._ready),
            pool=tuple(_waiting(self._pool)),
            ready=tuple(tuple(_waiting(pack.samples)) for pack in self._ready),
        )

    def next_pack(self) -> Pack | None:
        """The next pack; none when a finite order is used up."""
        if not self._ready:
            self._plan_window()
        return self._ready.popleft() if self._ready else None

    def stage_of(self, pack: int) -> int:
        """The stage in which a sample that enters at this pack is drawn."""
        return int(np.searchsorted(self._starts, pack, side="right")) - 1

    def draw(self, ordinals: np.ndarray, epoch: int, stage: int) -> list[Sample]:
        """The samples of these clips in this epoch: each takes one of the lengths that fit it."""
        windows = self._stages[stage].windows
        ids = self._table.clip_ids(ordinals)
        keys = rng.keys(self._seed, "num_frames", step=epoch, sample_ids=ids)
        chance = rng.uniform(keys, torch.zeros(len(ids), dtype=torch.int64)).numpy()
        fitting = windows.starts[ordinals] > 0
        wanted = np.floor(chance * fitting.sum(axis=1)).astype(np.int64)
        # The column of the (wanted+1)-th true entry of each row.
        candidate = np.argmax(np.cumsum(fitting, axis=1) > wanted[:, None], axis=1)
        tokens = np.where(fitting.any(axis=1), windows.tokens[ordinals, candidate], 0)
        columns = (ordinals.tolist(), candidate.tolist(), tokens.tolist())
        return [Sample(o, epoch, stage, c, t, -1) for o, c, t in zip(*columns, strict=True)]

    def _drawn_again(self, entries: list[Waiting]) -> dict[Waiting, Sample]:
        """The samples that state entries stand for; without those that have no window."""
        together = defaultdict(list)
        for entry in entries:
            together[entry[1], self.stage_of(entry[2])].append(entry)
        found = {}
        for (epoch, stage), group in together.items():
            samples = self.draw(np.array([ordinal for ordinal, _, _ in group]), epoch, stage)
            for entry, sample in zip(group, samples, strict=True):
                if sample.tokens:
                    found[entry] = sample._replace(entered=entry[2])
        return found

    def _plan_window(self) -> None:
        packs: list[list[Sample]] = []
        first = self._planned
        while len(packs) < self._rules.window and (samples := self._plan_one()):
            packs.append(samples)
            self._planned += 1
        if self._rules.window > 1:
            lengths = [[sample.tokens for sample in samples] for samples in packs]
            order = cost_order(lengths, descending=first // self._rules.window % 2 == 1)
            packs = [packs[i] for i in order]
        self._ready.extend(Pack(index=first + i, samples=s) for i, s in enumerate(packs))

    def _plan_one(self) -> list[Sample]:
        """The samples of the next pack in the order of planning; none at the end."""
        rules, stage = self._rules, self.stage_of(self._planned)
        while len(self._pool) < rules.pool_size and (s := self._blend.next(stage)) is not None:
            self._pool.append(s._replace(entered=self._planned))
        if not self._pool:
            return []
        slack = [s.entered + rules.max_age - self._planned for s in self._pool]
        tokens = [s.tokens for s in self._pool]
        if rules.alike:
            chosen = choose_alike(
                list(map(self._shape, self._pool)), tokens, slack, rules.token_budget
            )
        else:
            chosen = choose(tokens, slack, rules.token_budget)
        taken = set(chosen)
        samples = [self._pool[i] for i in chosen]
        self._pool = [s for i, s in enumerate(self._pool) if i not in taken]
        return samples

    def _shape(self, sample: Sample) -> tuple[int, int, int]:
        width, height = self._stages[sample.stage].windows.size[sample.ordinal].tolist()
        return sample.candidate, width, height


def _waiting(samples: list[Sample]) -> list[Waiting]:
    return [(s.ordinal, s.epoch, s.entered) for s in samples]
