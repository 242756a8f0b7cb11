"""The loader on synthetic clips: same packs and frames for any ranks, cache and resume."""

import itertools
import json
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from common.errors import ConfigError, DataError
from tests.dataloading.folder import Clip, frame_number, make_folder
from tests.dataloading.packs import digest, loader, take


def test_batches_keep_their_contract(small_folder: Path) -> None:
    with loader(small_folder, resize="area", size=[48, 48]) as source:
        for index, batch in enumerate(itertools.islice(source, 12)):
            assert batch.pack_index == index
            assert batch.latents is None
            assert batch.frames is not None
            assert batch.num_tokens <= 30
            assert batch.grid.dtype == torch.int64
            assert batch.cu_seqlens.dtype == torch.int32
            assert batch.cu_seqlens.diff().tolist() == batch.grid.prod(dim=1).tolist()
            rows = zip(batch.frames, batch.grid.tolist(), batch.fps.tolist(), strict=True)
            for frames, (t, h, w), fps in rows:
                assert frames.dtype == torch.uint8
                assert tuple(frames.shape) == (1 + 4 * (t - 1), 16 * h, 16 * w, 3)
                assert (fps == 0) == (t == 1)
            for sample_id, caption in zip(batch.sample_ids, batch.captions, strict=True):
                assert caption == f"a film of {sample_id.split(':')[0]}"


@pytest.mark.parametrize(
    "changes",
    [
        dict(cache_bytes=0),
        dict(cache_bytes=600_000),  # room for some clips only
        dict(num_threads=1, prefetch_packs=1),
        dict(num_threads=5, prefetch_packs=7),
    ],
)
def test_cache_threads_and_prefetch_change_nothing(
    small_folder: Path, stream: list[str], changes: dict
) -> None:
    assert take(loader(small_folder, **changes), 24) == stream


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_share_the_same_stream(small_folder: Path, stream: list[str], ranks: int) -> None:
    rounds = 24 // ranks
    shares = [take(loader(small_folder, rank=r, ranks=ranks), rounds) for r in range(ranks)]
    assert [shares[k % ranks][k // ranks] for k in range(rounds * ranks)] == (
        stream[: rounds * ranks]
    )


def test_every_state_resumes_exactly(small_folder: Path, stream: list[str]) -> None:
    with loader(small_folder) as source:
        states = [json.dumps(source.state_dict())]
        for _ in range(20):
            next(source)
            states.append(json.dumps(source.state_dict()))
    for k, state in enumerate(states):
        resumed = loader(small_folder, cache_bytes=0)
        resumed.load_state_dict(json.loads(state))
        assert take(resumed, 3) == stream[k : k + 3]


def test_another_number_of_ranks_continues_at_the_next_pack(
    small_folder: Path, stream: list[str]
) -> None:
    state: dict | None = None
    done = 0
    for ranks, rounds in [(2, 2), (3, 2), (1, 1), (4, 2), (2, 2)]:
        shares, states = {}, []
        for rank in range(ranks):
            with loader(small_folder, rank=rank, ranks=ranks) as source:
                if state is not None:
                    source.load_state_dict(state)
                for batch in itertools.islice(source, rounds):
                    shares[batch.pack_index] = digest(batch)
                states.append(source.state_dict())
        assert all(other == states[0] for other in states)
        assert [shares[k] for k in sorted(shares)] == stream[done : done + ranks * rounds]
        done += ranks * rounds
        state = states[0]
    assert done == 23


def test_state_is_of_what_was_delivered_and_survives_going_on(
    small_folder: Path, stream: list[str]
) -> None:
    source = loader(small_folder, prefetch_packs=8)
    assert [digest(next(source)) for _ in range(3)] == stream[:3]
    state = source.state_dict()
    assert state["next_pack"] == 3
    assert [digest(next(source)) for _ in range(4)] == stream[3:7]
    source.load_state_dict(state)
    assert take(source, 4) == stream[3:7]
    # After `close` the stream goes on where it was.
    assert take(source, 2) == stream[7:9]


def test_no_frame_is_in_training_and_in_validation(small_folder: Path) -> None:
    shown: dict[str, dict[str, set[int]]] = {"train": defaultdict(set), "val": defaultdict(set)}
    for split in shown:
        for fps in (None, 12.0):
            with loader(small_folder, split=split, fps=fps, size=[48, 48]) as source:
                for batch in itertools.islice(source, 60):
                    for sample_id, frames in zip(batch.sample_ids, batch.frames or [], strict=True):
                        clip_id = sample_id.split(":")[0] + str(fps)
                        shown[split][clip_id] |= {frame_number(f.numpy()) for f in frames}
    assert len(shown["val"]) == 16
    for clip_id, numbers in shown["val"].items():
        assert numbers
        trained = shown["train"][clip_id]
        assert trained
        assert not trained & numbers, clip_id


def test_validation_gives_each_window_once_in_the_same_packs_each_time(small_folder: Path) -> None:
    source = loader(small_folder, split="val")
    first = list(source)
    ids = [i for batch in first for i in batch.sample_ids]
    windows = {f"{w.clip_id}:val": w for w in source.val_windows}
    assert sorted(ids) == sorted(windows)
    assert len(ids) == 8  # all nine but the clip of one frame
    for batch in first:
        assert batch.start_s is not None
        for i, start, grid in zip(batch.sample_ids, batch.start_s, batch.grid, strict=True):
            assert windows[i].start_s == pytest.approx(float(start))
            assert windows[i].num_frames == 1 + 4 * (int(grid[0]) - 1)
    # Left in the middle, it begins again.
    next(iter(source))
    assert [digest(b) for b in source] == [digest(b) for b in first]
    shares = [
        digest(b) for r in range(2) for b in loader(small_folder, split="val", rank=r, ranks=2)
    ]
    assert sorted(shares) == sorted(digest(b) for b in first)


def test_windows_are_where_they_say(small_folder: Path) -> None:
    rates = dict(ant=24, bee=30, cat=24, dog=30000 / 1001, eel=25, fox=24, gnu=24, hen=24, jay=60)
    with loader(small_folder, split="all") as source:
        for batch in itertools.islice(source, 15):
            assert batch.start_s is not None
            rows = zip(batch.sample_ids, batch.start_s.tolist(), batch.frames or [], strict=True)
            for sample_id, start_s, frames in rows:
                first = round(start_s * rates[sample_id.split(":")[0]])
                numbers = [frame_number(f.numpy()) for f in frames]
                assert numbers == list(range(first, first + len(frames)))


def test_slower_windows_take_frames_by_time(small_folder: Path) -> None:
    with loader(small_folder, split="all", fps=10.0, num_frames=[5]) as source:
        for batch in itertools.islice(source, 6):
            assert batch.start_s is not None
            assert batch.fps.tolist() == [10.0] * batch.num_samples
            for i, start_s, frames in zip(
                batch.sample_ids, batch.start_s.tolist(), batch.frames or [], strict=True
            ):
                if i.startswith("eel"):  # 25 per second: every second and a half frame
                    first = round(start_s * 25)
                    numbers = [frame_number(f.numpy()) - first for f in frames]
                    assert numbers == [0, 2, 5, 7, 10]


def test_short_clips_are_named(small_folder: Path) -> None:
    source = loader(small_folder, num_frames=[9])
    assert source.skipped == {"fox": "too_short"}
    described = source.describe()
    assert described["clips"] == 9
    assert described["samples_per_epoch"] == 8
    assert described["clips_that_fit"] == {9: 8}
    assert described["too_short"] == 1
    assert 0.5 < described["fill"] <= 1
    with pytest.raises(DataError, match="none of the 9 clips"):
        loader(small_folder, num_frames=[97], token_budget=10**6)


def test_states_of_other_data_or_settings_are_refused(small_folder: Path, tmp_path: Path) -> None:
    state = loader(small_folder).state_dict()
    cases: list[dict] = [
        dict(seed=6),
        dict(token_budget=31),
        dict(num_frames=[1, 5]),
        dict(fps=8.0),
    ]
    for changes in cases:
        with pytest.raises(DataError, match=f"{next(iter(changes))} was"):
            loader(small_folder, **changes).load_state_dict(state)
    with pytest.raises(DataError, match="split was 'train'"):
        loader(small_folder, split="all").load_state_dict(state)
    other = make_folder(tmp_path, {"a": [Clip(clip_id="ant"), Clip(clip_id="bee")]})
    with pytest.raises(DataError, match="data was"):
        loader(other).load_state_dict(state)
    loader(small_folder, num_threads=4, cache_bytes=0, prefetch_packs=9).load_state_dict(state)


def test_wrong_ranks_and_splits_are_refused(small_folder: Path) -> None:
    with pytest.raises(ConfigError, match="dp_rank is 2"):
        loader(small_folder, rank=2, ranks=2)
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        loader(small_folder, split="trian")
