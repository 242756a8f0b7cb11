"""Wiring tier. Whatever the ranks, workers, stops, blend, curriculum and epochs: every id once, in
the planned order. Videos are not decoded: frames are as large as the plan says, and empty."""

import itertools
import json
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common.errors import ConfigError, DataError
from dataloading.config import Compression, CurriculumStage, LoaderConfig
from dataloading.loader import PackedLoader
from dataloading.reader import Window, WindowReader
from dataloading.sources import Sample
from tests.dataloading.folder import Clip, make_plan_folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three folders of 41, 17 and 30 clips; those of the last are single pictures."""
    root = tmp_path_factory.mktemp("blend")
    made = []
    for name, num_shards, per_shard, frames in (("a", 7, 6, 40), ("b", 4, 5, 25), ("c", 5, 6, 0)):
        shards = {
            f"{name}-{s:06d}": [
                Clip(
                    clip_id=f"{name}{s}{i}",
                    num_frames=9 + (7 * s + 5 * i) % frames if frames else 1,
                )
                for i in range(per_shard - (s == 1))
            ]
            for s in range(num_shards)
        }
        made.append(str(make_plan_folder(root / name, shards)))
    return made


@pytest.fixture(autouse=True)
def _empty_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: WindowReader, sample: Sample) -> Window:
        windows = self._stages[sample.stage]
        width, height = windows.size[sample.ordinal].tolist()
        num_frames = int(windows.candidates[sample.candidate])
        frames = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(num_frames, height, width, 3)
        clip_id = self._table.location(sample.ordinal).clip_id
        return Window(clip_id=clip_id, frames=frames, caption="", start_s=0.0, fps=24.0)

    monkeypatch.setattr(WindowReader, "read", read)


def config(folders: list[str], **changes: Any) -> LoaderConfig:
    values = dict(
        path=folders[0], token_budget=60, num_frames=[1, 5, 9], size=[32, 32], seed=3, pool_size=9,
        shuffle_shards=2, balance_packs=6, num_threads=1,
    )  # fmt: skip
    return LoaderConfig(**{**values, **changes})


Packs = dict[int, list[str]]


def segment(
    monkeypatch: pytest.MonkeyPatch,
    made: LoaderConfig,
    state: dict[str, Any] | None,
    ranks: int,
    workers: int,
    rounds: int,
) -> tuple[Packs, dict[str, Any]]:
    """What `ranks` of `workers` each deliver in so many rounds, and the state after them."""
    packs: Packs = {}
    states = []
    for rank in range(ranks):
        sources = []
        for worker in range(max(1, workers)):
            info = SimpleNamespace(id=worker, num_workers=workers) if workers else None
            monkeypatch.setattr("dataloading.loader.get_worker_info", lambda info=info: info)
            source = PackedLoader(made, Compression(), dp_rank=rank, dp_size=ranks)
            if state is not None:
                source.load_state_dict(state)
            sources.append(iter(source))
        for turn in range(rounds):
            batch = next(sources[turn % len(sources)])
            assert batch.pack_index not in packs
            assert batch.num_tokens <= made.token_budget
            packs[batch.pack_index] = batch.sample_ids
        last = sources[(rounds - 1) % len(sources)]
        states.append(json.loads(json.dumps(last.state_dict())))
        for source in sources:
            source.close()
    for other in states[1:]:
        assert {**other, "worker": None} == {**states[0], "worker": None}
    return packs, states[0]


def planned(made: LoaderConfig, num_packs: int) -> list[list[str]]:
    source = PackedLoader(made, Compression())
    planner = source._planner()
    packs = [planner.next_pack() for _ in range(num_packs)]
    return [
        [f"{source._table.location(s.ordinal).clip_id}:{s.epoch}" for s in pack.samples]
        for pack in packs
        if pack
    ]


@pytest.mark.parametrize("trial", range(8))
def test_any_ranks_workers_and_stops_give_the_planned_order_once(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, trial: int
) -> None:
    rnd = random.Random(trial)
    shares = [{}, {folders[1]: 0.7}, {folders[1]: 2.5, folders[2]: 0.31, folders[0]: 1.7}]
    made = config(
        folders,
        blend=shares[trial % 3],
        seed=rnd.randrange(99),
        balance_packs=rnd.choice([1, 5, 16]),
        batches=rnd.choice(["packed", "packed", "bucketed"]),
        curriculum=rnd.choice(
            [[], [CurriculumStage(from_pack=11, num_frames=[1, 13], size=[48, 32])]]
        ),
    )
    done: list[list[str]] = []
    state = None
    for ranks, workers in [(2, 2), (3, 1), (8, 0), (rnd.randint(1, 5), rnd.randint(0, 4))]:
        rounds = rnd.randint(1, 9)
        packs, state = segment(monkeypatch, made, state, ranks, workers, rounds)
        assert sorted(packs) == list(range(len(done), len(done) + ranks * rounds))
        done += [packs[k] for k in sorted(packs)]
        assert state["next_pack"] == len(done)
        assert len(json.dumps(state)) < 4000
    assert done == planned(made, len(done))
    seen = [i for pack in done for i in pack]
    assert len(set(seen)) == len(seen)


def test_every_epoch_of_every_folder_holds_each_clip_once(folders: list[str]) -> None:
    made = config(folders, blend={folders[1]: 0.5, folders[2]: 2.0})
    packs = planned(made, 400)
    seen = Counter(i for pack in packs for i in pack)
    assert set(seen.values()) == {1}
    sizes = {"a": 41, "b": 19, "c": 29}
    whole = 0
    for name, size in sizes.items():
        epochs = Counter(i.split(":")[1] for i in seen if i.startswith(name))
        newest = max(map(int, epochs))
        for epoch, count in epochs.items():
            assert count <= size
            # Samples of the last two epochs may wait in the pool.
            if int(epoch) < newest - 1:
                assert count == size, (name, epoch)
                whole += 1
    assert whole > 20


def test_shares_are_kept_at_any_time_and_change_with_the_stage(folders: list[str]) -> None:
    made = config(
        folders,
        blend={folders[1]: 0.5, folders[2]: 0.0},
        curriculum=[CurriculumStage(from_pack=50, blend={folders[0]: 0.0, folders[2]: 1.0})],
        pool_size=1,
        balance_packs=1,
    )
    kinds = [i[0] for pack in planned(made, 120) for i in pack]
    first = kinds[: max(i for i, k in enumerate(kinds) if k != "c") + 1]
    for count in range(1, len(first)):
        assert abs(first[:count].count("a") - count * 2 / 3) <= 2
    assert "c" not in first
    assert set(kinds[len(first) :]) == {"c"}


def test_lengths_and_sizes_change_with_the_stage_and_nothing_held_out_is_trained_on(
    folders: list[str],
) -> None:
    stages = [CurriculumStage(from_pack=20, num_frames=[9], size=[64, 32])]
    made = config(folders, num_frames=[1], curriculum=stages, pool_size=4, balance_packs=1)
    source = PackedLoader(made, Compression())
    shapes = []
    with source:
        for batch in itertools.islice(source, 60):
            shapes.append({tuple(f.shape[:3]) for f in batch.frames or []})
    assert set().union(*shapes[:20]) == {(1, 32, 32)}
    assert set().union(*shapes[30:]) == {(9, 32, 64)}
    with PackedLoader(made, Compression(), split="val") as held:
        windows = {w.clip_id: w for w in held.val_windows}
    train = source._catalogue
    for clip_id, window in windows.items():
        ordinal = train.table.clip_ids(range(len(train.table))).index(clip_id)  # type: ignore[arg-type]
        begin = round(window.start_s * 24)
        for stage in train.stages:
            spans = zip(stage.windows.first[ordinal], stage.windows.end[ordinal], strict=True)
            for first, end in spans:
                assert end <= begin or first >= begin + window.num_frames


def test_buckets_hold_one_shape_and_fill_the_budget(folders: list[str]) -> None:
    made = config(folders, batches="bucketed", token_budget=64, pool_size=40)
    full = []
    with PackedLoader(made, Compression()) as source:
        for batch in itertools.islice(source, 80):
            shapes = {tuple(grid) for grid in batch.grid.tolist()}
            assert len(shapes) == 1
            full.append(batch.num_samples == 64 // int(batch.cu_seqlens[1]))
    assert sum(full) > 0.5 * len(full)


def test_neighbouring_packs_cost_about_the_same(folders: list[str]) -> None:
    def unevenness(balance_packs: int) -> float:
        made = config(folders, num_frames=[1, 5, 9], pool_size=20, balance_packs=balance_packs)
        planner = PackedLoader(made, Compression())._planner()
        costs = []
        for _ in range(96):
            pack = planner.next_pack()
            assert pack is not None
            costs.append(sum(s.tokens**2 for s in pack.samples))
        steps = [costs[i : i + 4] for i in range(0, 96, 4)]
        return sum(max(step) for step in steps) / (sum(costs) / 4)

    assert unevenness(32) < 1 + 0.6 * (unevenness(1) - 1)


def test_other_settings_are_taken_when_told_to_and_nothing_is_lost_or_doubled(
    folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, state = segment(monkeypatch, config(folders), None, 2, 0, 5)
    changed = dict(token_budget=90, pool_size=20, balance_packs=4, size=[32, 48])
    with pytest.raises(DataError, match="token_budget was 60 and is now 90"):
        segment(monkeypatch, config(folders, **changed), state, 3, 0, 40)
    taken = config(folders, **changed, accept_changes=True)
    then, _ = segment(monkeypatch, taken, state, 3, 0, 40)
    assert min(then) == 10
    seen = Counter(i for pack in [*packs.values(), *then.values()] for i in pack)
    assert set(seen.values()) == {1}
    assert sum(i.endswith(":0") for i in seen) == 41
    assert sum(i.endswith(":1") for i in seen) == 41


def test_other_data_goes_on_with_the_next_epoch_when_told_to(
    folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, state = segment(monkeypatch, config(folders), None, 1, 0, 9)
    other = config([folders[1]], accept_changes=True)
    with pytest.raises(DataError, match="data was"):
        segment(monkeypatch, config([folders[1]]), state, 1, 0, 9)
    packs, _ = segment(monkeypatch, other, state, 1, 0, 9)
    assert sorted(packs) == list(range(9, 18))
    epoch = state["sources"][0][0] + 1
    assert sum(i.endswith(f":{epoch}") for pack in packs.values() for i in pack) > 10


def test_blends_and_stages_that_cannot_be_are_refused(folders: list[str]) -> None:
    for changes, words in (
        (dict(blend={folders[1]: -1.0}), "share -1.0, must be at least 0"),
        (dict(blend={folders[0]: 0.0}), "no folder a share above 0"),
        (dict(curriculum=[CurriculumStage(from_pack=0)]), "from_pack 0 after 0"),
        (dict(curriculum=[CurriculumStage(from_pack=3, size=[9])]), "from pack 3: size"),
        (dict(curriculum=[CurriculumStage(from_pack=3, blend={"x": 1.0})]), "which blend does"),
        (dict(batches="bucket"), "did you mean 'bucketed'"),
    ):
        with pytest.raises(ConfigError, match=words):
            config(folders, **changes)  # type: ignore[arg-type]
    images = config(folders, blend={folders[2]: 1.0}, num_frames=[9])
    with pytest.raises(DataError, match="none of the 29 clips of .*c has room for a window"):
        PackedLoader(images, Compression())
