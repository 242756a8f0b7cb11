"""Every defect of a folder of shards is named, and a sound one has none (wiring only)."""

import hashlib
import io
import json
import shutil
import sqlite3
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import DataError
from dataloading.buckets import Buckets
from dataloading.defects import Defect
from dataloading.energon import write_energon
from dataloading.folder import open_folder
from dataloading.schema import Manifest, read_manifest, write_manifest
from dataloading.verify import verify
from tests.dataloading.folder import Clip, make_folder, video_bytes

SHARD = "a-000000.tar"
WHOLE = Clip(clip_id="ant", num_frames=12)


def defects(path: Path) -> list[Defect]:
    return [d for step in verify(open_folder(path), num_threads=2) for d in step.defects]


def found(path: Path) -> set[tuple[str, str, str]]:
    """(shard, member, what) of every defect."""
    return {(d.shard, d.member, d.what) for d in defects(path)}


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return video_bytes(WHOLE, tmp_path_factory.mktemp("video"))


@pytest.fixture
def folder(tmp_path: Path, video: bytes) -> Path:
    clips = [replace(WHOLE, clip_id=name, video=video) for name in ("ant", "bee", "cat")]
    return make_folder(tmp_path / "curated", {"a-000000": clips[:2], "b/b-000000": clips[2:]})


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def accept(folder: Path) -> None:
    """Makes the manifest agree with the bytes, so that other defects stand alone."""
    shards = folder / "shards"
    infos = []
    for info in read_manifest(shards).shards:
        tar, index = shards / info.path, shards / info.index_path
        infos.append(
            replace(
                info,
                num_bytes=tar.stat().st_size,
                sha256=hashlib.sha256(tar.read_bytes()).hexdigest(),
                index_sha256=hashlib.sha256(index.read_bytes()).hexdigest(),
            )
        )
    write_manifest(shards, Manifest(shards=infos))


def test_a_sound_folder_has_none_and_all_of_it_is_read(folder: Path) -> None:
    steps = list(verify(open_folder(folder), num_threads=3))
    assert [d for step in steps for d in step.defects] == []
    assert sum(step.is_shard for step in steps) == 2
    assert sum(step.is_clip for step in steps) == 3
    size = sum(p.stat().st_size for p in folder.rglob("*.tar"))
    assert sum(step.shard_bytes for step in steps) == size
    assert found(folder / "shards") == set(), "the inner folder is the same folder"


def test_a_clip_in_the_wrong_bucket_is_named(tmp_path: Path, video: bytes) -> None:
    buckets = Buckets(aspects=["16x9", "1x1"], short_sides_px=[], durations_s=[])
    bucket = buckets.of(WHOLE.width, WHOLE.height, 1.0)
    wrong = "16x9_any_0-infs"
    assert bucket != wrong
    clips = [replace(WHOLE, clip_id=name, video=video) for name in ("ant", "bee")]
    folder = make_folder(tmp_path / "curated", {f"{bucket}/a": clips[:1], f"{wrong}/b": clips[1:]})
    assert found(folder) == set()
    shards = folder / "shards"
    write_manifest(shards, replace(read_manifest(shards), buckets=buckets))
    assert found(folder) == {(f"{wrong}/b.tar", "bee", "wrong_bucket")}


def flip_a_bit(shards: Path) -> None:
    content = bytearray((shards / SHARD).read_bytes())
    end = content.index(b'a film of bee"}') + len('a film of bee"}')
    content[end] ^= 1  # padding: no member holds it
    (shards / SHARD).write_bytes(content)


def lose_a_shard(shards: Path) -> None:
    (shards / SHARD).unlink()


def add_a_shard(shards: Path) -> None:
    shutil.copy(shards / SHARD, shards / "stray.tar")


def change_the_index(shards: Path) -> None:
    shutil.copy(shards / "b/b-000000.index.arrow", shards / "a-000000.index.arrow")


def break_the_index(shards: Path) -> None:
    (shards / "a-000000.index.arrow").write_bytes(b"x")


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (flip_a_bit, {(SHARD, "", "wrong_checksum")}),
        (lose_a_shard, {(SHARD, "", "missing_shard")}),
        (add_a_shard, {("stray.tar", "", "unlisted_shard")}),
        (
            change_the_index,
            {
                (SHARD, "a-000000.index.arrow", "wrong_checksum"),
                (SHARD, "a-000000.index.arrow", "wrong_num_clips"),
                (SHARD, "a-000000.index.arrow", "wrong_duration"),
                (SHARD, "cat.mp4", "missing_member"),
                (SHARD, "cat.json", "missing_member"),
                (SHARD, "ant.mp4", "not_in_index"),
                (SHARD, "ant.json", "not_in_index"),
                (SHARD, "bee.mp4", "not_in_index"),
                (SHARD, "bee.json", "not_in_index"),
                ("b/b-000000.tar", "cat", "repeated_clip"),
            },
        ),
        (break_the_index, {(SHARD, "a-000000.index.arrow", "unreadable_index")}),
    ],
)
def test_files_that_are_not_as_the_manifest_says(
    folder: Path, harm: Callable[[Path], None], expected: set
) -> None:
    harm(folder / "shards")
    assert found(folder) == expected


def test_a_cut_shard(folder: Path) -> None:
    path = folder / "shards" / SHARD
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 8])
    names = found(folder)
    assert {what for _, _, what in names} >= {"wrong_bytes", "wrong_checksum", "damaged_tar"}
    assert (SHARD, "bee.mp4", "missing_member") in names
    says = next(d.value for d in defects(folder) if d.what == "wrong_bytes")
    assert says == f"{len(content) // 8} bytes, the manifest says {len(content)}"


def test_a_damaged_header_is_not_taken_for_the_end(folder: Path) -> None:
    """Python's own tar reader stops there without a word; clips behind it are still looked into."""
    path = folder / "shards" / SHARD
    content = bytearray(path.read_bytes())
    at = content.index(b"bee.mp4")
    content[at + 148 : at + 156] = b"99999999"
    path.write_bytes(content)
    accept(folder)
    (only,) = defects(folder)
    assert (only.what, only.value) == ("damaged_tar", f"damaged header at byte {at}, after 2 files")


def test_a_tar_without_its_end(folder: Path) -> None:
    path = folder / "shards" / SHARD
    with tarfile.open(path) as tar:
        end = max(m.offset_data + -(-m.size // 512) * 512 for m in tar)
    path.write_bytes(path.read_bytes()[:end])
    accept(folder)
    assert [d.what for d in defects(folder)] == ["damaged_tar"]


CLIPS: dict[str, tuple[dict, set[str]]] = {
    "longer": ({"num_frames": 13}, {"wrong_num_frames", "wrong_duration", "wrong_fps"}),
    "wider": ({"width": 66}, {"wrong_size"}),
    "faster": ({"fps": 48.0}, {"wrong_fps", "wrong_duration"}),
    "nojson": ({"meta": b"{"}, {"bad_json"}),
    "list": ({"meta": b"[]"}, {"bad_json"}),
    "mute": ({"meta": b'{"caption": null}'}, {"no_caption"}),
    "latin": ({"meta": b'{"caption": "caf\xe9"}'}, {"not_utf8"}),
    "half": ({"meta": b'{"caption": "\\ud800"}'}, {"not_utf8"}),
    "empty": ({"video": b""}, {"empty"}),
    "text": ({"video": b"hello"}, {"not_a_video"}),
}


def test_clips_that_are_not_as_the_index_says(tmp_path: Path, video: bytes) -> None:
    clips = [
        replace(WHOLE, clip_id=name, **{"video": video, **changes})
        for name, (changes, _) in CLIPS.items()
    ]
    make_folder(tmp_path, {"a-000000": clips})
    named: dict[str, set[str]] = {}
    for defect in defects(tmp_path):
        named.setdefault(defect.member.partition(".")[0], set()).add(defect.what)
    for name, (_, whats) in CLIPS.items():
        assert named[name] & whats, (name, named.get(name))
        assert named[name] <= whats, (name, named[name])
    assert set(named) == set(CLIPS)


def test_a_video_that_ends_early(tmp_path: Path, video: bytes) -> None:
    noise = bytearray(video)
    start = noise.index(b"mdat") + len(video) // 3
    noise[start : start + 200] = bytes(200)
    clips = [replace(WHOLE, clip_id="noise", num_frames=12, video=bytes(noise))]
    make_folder(tmp_path, {"a-000000": clips})
    assert {d.member for d in defects(tmp_path)} == {"noise.mp4"}


def plain(path: Path, video: bytes) -> Path:
    """Two tars of another maker's, without any index."""
    for shard, keys in {"x/0.tar": "ab", "1.tar": "cd"}.items():
        members = [
            member
            for key in keys
            for member in ((f"{key}.mp4", video), (f"{key}.txt", f"clip {key}".encode()))
        ]
        write_tar(path / shard, members)
    return path


def test_plain_tars(tmp_path: Path, video: bytes) -> None:
    folder = plain(tmp_path, video)
    opened = open_folder(folder)
    assert (opened.kind, opened.shards) == ("webdataset", ["1.tar", "x/0.tar"])
    assert defects(folder) == []
    stated = dict(width=64, height=48, num_frames=12, fps=24.0)
    write_tar(
        folder / "2.tar",
        [
            ("good.mp4", video),
            ("good.json", json.dumps({**stated, "caption": "x"}).encode()),
            ("long.mp4", video),
            ("long.json", json.dumps({**stated, "num_frames": 99}).encode()),
            ("cut.mp4", video[: len(video) // 2]),
            ("cut.json", b"{}"),
            ("latin.mp4", video),
            ("latin.json", b'"\xff"'),
            ("torn.mp4", video),
            ("good.flac", b"x"),
        ],
    )
    assert found(folder) >= {
        ("2.tar", "long.mp4", "wrong_num_frames"),
        ("2.tar", "latin.json", "not_utf8"),
        ("2.tar", "torn", "missing_member"),
        ("2.tar", "good", "split_sample"),
    }
    assert any(d.member == "cut.mp4" for d in defects(folder))
    assert {d.shard for d in defects(folder)} == {"2.tar"}


def test_a_folder_that_energon_prepared(tmp_path: Path, video: bytes) -> None:
    energon = pytest.importorskip("megatron.energon.flavors.webdataset.prepare")
    epath = pytest.importorskip("megatron.energon.epathlib")
    folder = plain(tmp_path, video)
    energon.WebdatasetPreparator.prepare_dataset(
        epath.EPath(folder),
        ["1.tar", "x/0.tar"],
        split_parts_ratio=[("train", 1.0)],
        workers=1,
    )
    opened = open_folder(folder)
    assert opened.kind == "energon"
    assert opened.counts == {"1.tar": 2, "x/0.tar": 2}
    assert defects(folder) == []
    write_tar(folder / "1.tar", [("c.txt", b"clip c"), ("c.mp4", video), ("e.mp4", video)])
    (folder / "x/0.tar.idx").unlink()
    write_tar(folder / "new.tar", [("n.mp4", video)])
    assert found(folder) == {
        ("1.tar", "c.mp4", "energon_index"),
        ("x/0.tar", "", "energon_offsets"),
        ("new.tar", "", "unlisted_shard"),
    }


def test_energons_view_of_a_curated_folder_is_checked_too(folder: Path) -> None:
    shards = folder / "shards"
    write_energon(shards, read_manifest(shards))
    assert defects(folder) == []
    database = sqlite3.connect(shards / ".nv-meta/index.sqlite")
    database.execute("UPDATE sample_parts SET content_byte_size = 7 WHERE part_name = 'json'")
    database.commit()
    database.close()
    (shards / ".nv-meta/.info.json").write_text('{"shard_counts": {"a-000000.tar": 5}}')
    assert found(folder) == {
        (SHARD, "", "energon_count"),
        (SHARD, "ant.json", "energon_index"),
        ("b/b-000000.tar", "", "energon_unlisted"),
    }
    (shards / ".nv-meta/.info.json").write_text("{")
    with pytest.raises(DataError, match=r"\.info\.json is damaged .*; run `energon") as error:
        defects(folder)
    assert "\n" not in str(error.value)


def test_what_is_no_folder_of_shards(tmp_path: Path) -> None:
    for path, says in [
        (tmp_path, "holds no shards: neither shards/manifest.json"),
        (tmp_path / "none", "there is no folder"),
        (tmp_path / "file", "is a file; give the folder it lies in"),
    ]:
        (tmp_path / "file").touch()
        with pytest.raises(DataError, match=says) as error:
            open_folder(path)
        assert "\n" not in str(error.value)


def test_names_cannot_steer_a_terminal() -> None:
    line = Defect(shard="a\x1b[2J.tar", member="b\nc", what="x", value="\u202e[red]").line()
    assert line == "a\\x1b[2J.tar: b\\nc: x: \\u202e[red]"
