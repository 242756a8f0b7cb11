"""The plan: packs of many epochs against a plain recomputation, and its cost to restore."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from common import rng
from dataloading.config import Compression, LoaderConfig
from dataloading.loader import PackedLoader
from dataloading.packing import choose
from dataloading.plan import Planner
from dataloading.state import LoaderState
from tests.dataloading.folder import Clip, make_plan_folder

LENGTHS = [1, 5, 9]
POOL, AGE, BUDGET, SEED = 6, 7, 60, 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shards = {
        f"s-{s:06d}": [
            Clip(clip_id=f"c{s}{i}", num_frames=3 + (7 * s + 5 * i) % 40) for i in range(2 + s % 3)
        ]
        for s in range(5)
    }
    return make_plan_folder(tmp_path_factory.mktemp("plan"), shards)


def loader(folder: Path, **changes) -> PackedLoader:
    values = dict(
        path=str(folder),
        token_budget=BUDGET,
        num_frames=LENGTHS,
        size=[64, 32],
        seed=SEED,
        shuffle_shards=2,
        pool_size=POOL,
        max_age=AGE,
        balance_packs=1,
    )
    return PackedLoader(LoaderConfig(**{**values, **changes}), Compression())


def planner(folder: Path, **changes) -> Planner:
    return loader(folder, **changes)._planner()


def recomputed(folder: Path, num_packs: int) -> list[list[tuple[int, int, int]]]:
    """Packs of (ordinal, epoch, tokens), by lists and loops, from the whole order of each epoch."""
    made = loader(folder)
    order = made._planner()._blend._sources[0]._order
    ids = [f"c{s}{i}" for s in range(5) for i in range(2 + s % 3)]
    frames = [3 + (7 * s + 5 * i) % 40 for s in range(5) for i in range(2 + s % 3)]

    def samples():
        epoch = 0
        while True:
            position = 0
            while position < len(order):
                for ordinal in order.block(epoch, position).ordinals.tolist():
                    # In training, a clip of n frames into which 3*T fit lost the T in its middle.
                    n = frames[ordinal]
                    held = max((t for t in LENGTHS if (n - t) // 2 >= t), default=0)
                    side = n - held - (n - held) // 2 if held else n
                    fitting = [t for t in LENGTHS if t <= side]
                    key = rng.key(SEED, "num_frames", step=epoch, sample_id=ids[ordinal])
                    chance = float(rng.uniform(key, torch.tensor(0)))
                    length = fitting[int(chance * len(fitting))]
                    yield ordinal, epoch, (1 + (length - 1) // 4) * 2 * 4
                    position += 1
            epoch += 1

    stream, pool, packs = samples(), [], []
    for number in range(num_packs):
        while len(pool) < POOL:
            pool.append((*next(stream), number))
        slack = [entered + AGE - number for *_, entered in pool]
        chosen = choose([tokens for _, _, tokens, _ in pool], slack, BUDGET)
        packs.append([pool[i][:3] for i in chosen])
        pool = [entry for i, entry in enumerate(pool) if i not in chosen]
    return packs


def test_packs_are_those_of_a_plain_recomputation(folder: Path) -> None:
    made = planner(folder)
    packs = [pack for pack in (made.next_pack() for _ in range(60)) if pack]
    got = [[(s.ordinal, s.epoch, s.tokens) for s in pack.samples] for pack in packs]
    assert got == recomputed(folder, 60)
    assert packs[-1].samples[0].epoch > 3  # the stream ran over epoch borders


def test_budget_age_and_one_visit_per_epoch(folder: Path) -> None:
    made = planner(folder)
    seen: dict[int, list[int]] = {}
    for _ in range(300):
        pack = made.next_pack()
        assert pack is not None
        assert 0 < pack.tokens <= BUDGET
        for sample in pack.samples:
            assert pack.index - sample.entered <= AGE
            seen.setdefault(sample.epoch, []).append(sample.ordinal)
    state = made.state()
    waiting = {epoch for _, epoch, _ in state.pool} | {state.sources[0][0]}
    usable = sorted(seen[0])
    assert len(seen) > 20
    for epoch, ordinals in seen.items():
        if epoch not in waiting:
            assert sorted(ordinals) == usable


def test_any_position_restores_through_json_and_continues(folder: Path) -> None:
    whole = planner(folder)
    packs, states = [], []
    for _ in range(40):
        states.append(json.dumps(whole.state().to_dict({})))
        packs.append(whole.next_pack())
    for k, state in enumerate(states):
        made = planner(folder)
        made.restore(LoaderState.from_dict(json.loads(state), {}))
        assert [made.next_pack() for _ in range(5)][: 40 - k] == packs[k : k + 5]


def test_restoring_replays_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = planner(folder, pool_size=64, max_age=64)
    num_chosen, num_bytes = [], []
    for _ in range(2):
        for _ in range(1500):
            made.next_pack()
        state = made.state()
        num_bytes.append(len(json.dumps(state.to_dict({}))))
        other = planner(folder, pool_size=64, max_age=64)
        calls: list[int] = []

        def counted(lengths: list[int], *rest: Any, calls: list[int] = calls) -> list[int]:
            calls.append(len(lengths))
            return choose(lengths, *rest)

        with monkeypatch.context() as patch:
            patch.setattr("dataloading.plan.choose", counted)
            other.restore(state)
            assert other.next_pack() is not None
        num_chosen.append(len(calls))
    assert num_chosen == [1, 1], "one pack was asked for, and one was planned"
    assert max(num_bytes) < 2500  # 64 waiting samples at most, three integers each


def test_a_finite_order_ends_with_every_window_delivered(folder: Path) -> None:
    made = loader(folder)
    val = PackedLoader(made.config, Compression(), split="val")._planner()
    packs = []
    while (pack := val.next_pack()) is not None:
        packs.append(pack)
    delivered = sorted(s.ordinal for pack in packs for s in pack.samples)
    assert len(delivered) == len(set(delivered)) == len(made.val_windows) > 5
    assert val.next_pack() is None
