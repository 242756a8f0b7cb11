"""Damaged clips and folders: named, left out by one rule on every rank, or refused at start."""

import itertools
import json
from pathlib import Path

import pytest

from common.errors import DataError
from dataloading.config import Compression, LoaderConfig
from dataloading.loader import PackedLoader
from dataloading.schema import read_index, read_manifest
from dataloading.state import merge_skipped
from tests.dataloading.folder import Clip, make_folder, video_bytes

GOOD = ["ant", "bee", "cat", "dog"]


def loader(folder: Path, *, split: str = "all", rank: int = 0, ranks: int = 1, **changes):
    values = dict(path=str(folder), token_budget=24, num_frames=[9], size=[32, 32], pool_size=3)
    config = LoaderConfig(**{**values, **changes})
    return PackedLoader(config, Compression(), split=split, dp_rank=rank, dp_size=ranks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damaged")
    whole = video_bytes(Clip(clip_id="whole", num_frames=24), path)
    flipped = bytearray(whole)
    flipped[4:64] = bytes(b ^ 0xFF for b in flipped[4:64])
    clips = [
        *(Clip(clip_id=i, num_frames=24) for i in GOOD),
        Clip(clip_id="cut", num_frames=24, video=whole[: len(whole) // 4]),
        Clip(clip_id="flipped", num_frames=24, video=bytes(flipped)),
        Clip(clip_id="empty", num_frames=24, video=b""),
        Clip(clip_id="shape", num_frames=24, width=32, video=whole),
        Clip(clip_id="longer", num_frames=240, video=whole),
        Clip(clip_id="mute", num_frames=24, meta=b'{"caption": null}'),
        Clip(clip_id="nojson", num_frames=24, meta=b"\x00\xff"),
    ]
    return make_folder(path, {"a-000000": clips[::2], "a-000001": clips[1::2]})


REASONS = {
    "cut": ("missing_frames", "no_moov", "decode_failed", "not_a_video"),
    "flipped": ("no_moov", "not_a_video", "decode_failed", "missing_frames"),
    "empty": ("empty",),
    "shape": ("wrong_shape",),
    "longer": ("missing_frames",),
    "mute": ("no_caption",),
    "nojson": ("bad_json",),
}


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
def test_damaged_clips_are_named_and_left_out(folder: Path, cache_bytes: int) -> None:
    with loader(folder, cache_bytes=cache_bytes) as source:
        batches = list(itertools.islice(source, 40))
        skipped = source.skipped
    delivered = {i.split(":")[0] for batch in batches for i in batch.sample_ids}
    # `longer` holds 24 frames though its index says 240: windows inside the 24 are good.
    assert set(GOOD) <= delivered <= {*GOOD, "longer"}
    assert set(skipped) == set(REASONS)
    for clip_id, reasons in REASONS.items():
        assert skipped[clip_id].startswith(reasons), skipped[clip_id]
        assert f"clip {clip_id}: " in skipped[clip_id]
    for batch in batches:
        assert batch.num_samples == len(batch.frames or []) == len(batch.captions) > 0
        assert batch.cu_seqlens.diff().tolist() == [12] * batch.num_samples


def ids(source: PackedLoader, count: int) -> list[tuple[int, list[str]]]:
    with source:
        return [(b.pack_index, b.sample_ids) for b in itertools.islice(source, count)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_agree_on_what_is_left_out(folder: Path, ranks: int) -> None:
    alone = ids(loader(folder, token_budget=12), 30)
    shares = [
        ids(loader(folder, token_budget=12, rank=r, ranks=ranks), 30 // ranks) for r in range(ranks)
    ]
    assert sorted(itertools.chain(*shares)) == alone
    # Packs of one clip, most of them damaged: others took their place, under ids of their own.
    substituted = [i for _, sample_ids in alone for i in sample_ids if "." in i]
    assert len(substituted) > 5
    every = [i for _, sample_ids in alone for i in sample_ids]
    assert len(set(every)) == len(every)
    assert [index for index, _ in alone] == list(range(30))


def test_resume_after_damage(folder: Path) -> None:
    alone = ids(loader(folder), 16)
    with loader(folder) as source:
        for _ in range(9):
            next(source)
        state = json.loads(json.dumps(source.state_dict()))
        skipped = source.skipped
    resumed = loader(folder)
    resumed.load_state_dict(state)
    assert resumed.skipped == skipped != {}
    assert ids(resumed, 7) == alone[9:]


def test_validation_leaves_out_what_it_cannot_read(folder: Path) -> None:
    with loader(folder, split="val", token_budget=12, num_frames=[5]) as source:
        given = [i for batch in source for i in batch.sample_ids]
        assert sorted(given) == [f"{i}:val" for i in GOOD]
        assert set(source.skipped) == set(REASONS)


def test_too_many_bad_clips_stop_the_run_with_a_list(folder: Path) -> None:
    with pytest.raises(DataError, match="3 clips of .* more than max_bad_clips") as error:
        ids(loader(folder, max_bad_clips=2), 50)
    assert sum(f"clip {clip_id}: " in str(error.value) for clip_id in REASONS) == 3


def test_clips_that_other_ranks_found_do_not_count_after_a_resume(folder: Path) -> None:
    """Each rank was within its limit; together they are not, and the run goes on."""
    states = []
    for rank in range(3):
        with loader(folder, rank=rank, ranks=3, token_budget=12, max_bad_clips=4) as source:
            next(source)
            states.append(source.state_dict())
    assert max(len(state["skipped"]) for state in states) <= 4
    state = merge_skipped(states)
    known = set(state["skipped"])
    assert 4 < len(known) < len(REASONS)
    resumed = loader(folder, token_budget=12, max_bad_clips=4)
    resumed.load_state_dict(state)
    ids(resumed, 40)
    assert set(resumed.skipped) == set(REASONS)
    # What this process finds itself still counts, and asking again does not get past it.
    strict = loader(folder, token_budget=12, max_bad_clips=0)
    strict.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(DataError, match=r"^1 clips of .* than max_bad_clips \(0\)") as error:
            ids(strict, 40)
        named = {clip_id for clip_id in REASONS if f"clip {clip_id}: " in str(error.value)}
        assert len(named) == 1
        assert not named & known


def test_a_folder_of_nothing_readable_stops(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, {"a": [Clip(clip_id=i, video=b"x") for i in "abc"]})
    with pytest.raises(DataError, match="no clip of .* can be read"):
        next(loader(folder))


def copy_with(tmp_path: Path) -> Path:
    return make_folder(
        tmp_path,
        {"a-000000": [Clip(clip_id="ant")], "b-000000": [Clip(clip_id="bee"), Clip(clip_id="cat")]},
    )


def test_a_missing_or_short_shard_is_refused_by_name(tmp_path: Path) -> None:
    shards = copy_with(tmp_path) / "shards"
    content = (shards / "b-000000.tar").read_bytes()
    (shards / "b-000000.tar").write_bytes(content[:-512])
    says = f"b-000000.tar has {len(content) - 512} bytes, the manifest says {len(content)}"
    with pytest.raises(DataError, match=says):
        loader(tmp_path)
    (shards / "a-000000.tar").unlink()
    with pytest.raises(DataError, match=r"a-000000.tar is missing; b-000000.tar has"):
        loader(tmp_path)


def test_files_that_cannot_be_looked_at_are_named(tmp_path: Path) -> None:
    shards = copy_with(tmp_path) / "shards"
    for name, says in [
        ("a-000000.tar", "a-000000.tar cannot be read: Too many levels"),
        ("manifest.json", "cannot read .*manifest.json: Too many levels"),
    ]:
        (shards / name).unlink()
        (shards / name).symlink_to(name)
        with pytest.raises(DataError, match=says):
            loader(tmp_path)


def test_clips_that_are_there_twice_are_refused_by_name(tmp_path: Path) -> None:
    clips = [Clip(clip_id="ant"), Clip(clip_id="bee")]
    folder = make_folder(tmp_path, {"a": clips, "b": clips[:1]})
    with pytest.raises(DataError, match="clips more than once: ant; remove"):
        loader(folder)


def test_a_changed_index_is_refused_by_name(tmp_path: Path) -> None:
    shards = copy_with(tmp_path) / "shards"
    (shards / "a-000000.index.arrow").write_bytes((shards / "b-000000.index.arrow").read_bytes())
    with pytest.raises(DataError, match=r"a-000000.index.arrow is not the index .*2 rows of 1"):
        loader(tmp_path)


def test_a_shard_with_other_members_than_its_index_says(tmp_path: Path) -> None:
    shards = copy_with(tmp_path) / "shards"
    table = read_index(shards / "b-000000.index.arrow")
    at = table["video_offset"][0].as_py() - 512
    content = bytearray((shards / "b-000000.tar").read_bytes())
    assert content[at : at + 7] == b"bee.mp4"
    content[at : at + 7] = b"bex.mp4"
    (shards / "b-000000.tar").write_bytes(bytes(content))
    with loader(tmp_path) as source:
        for _ in range(6):
            next(source)
        assert source.skipped == {
            "bee": f"missing_member: clip bee: b-000000.tar has no bee.mp4 at byte {at + 512}"
        }


def test_a_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"manifest.json does not exist"):
        loader(tmp_path)
    (tmp_path / "clip.mp4").write_bytes(b"x")
    with pytest.raises(DataError, match=r"manifest.json does not exist: give the output folder"):
        loader(tmp_path / "clip.mp4")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "manifest.json").write_text('{"format_version": 1, "shards": []}')
    assert read_manifest(tmp_path / "shards").shards == []
    with pytest.raises(DataError, match="has no shards"):
        loader(tmp_path)


def test_a_shard_that_vanishes_later_stops_the_run(tmp_path: Path) -> None:
    folder = copy_with(tmp_path)
    source = loader(folder, cache_bytes=0)
    (folder / "shards" / "a-000000.tar").unlink()
    with pytest.raises(DataError, match=r"cannot read .*a-000000.tar: No such file"):
        ids(source, 20)
