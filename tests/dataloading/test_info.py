"""What is said and shown of a folder of shards (wiring only)."""

import json
import re
from pathlib import Path

import pytest

from common.errors import DataError
from dataloading.config import Compression, LoaderConfig
from dataloading.folder import open_folder
from dataloading.info import Contents, contents, packing
from dataloading.peek import contact_sheet
from tests.dataloading.folder import Clip, make_folder
from tests.pages.samples import HOSTILE


def sheet(path: Path, clips: int) -> tuple[str, int]:
    """The page, and how often progress was told."""
    folder = open_folder(path)
    ticks: list[int] = []
    html = contact_sheet(folder, contents(folder), clips=clips, tick=lambda: ticks.append(1))
    return html, len(ticks)


def test_a_curated_folder_is_counted_from_its_index(small_folder: Path) -> None:
    found = contents(open_folder(small_folder))
    assert (found.num_shards, found.num_clips, found.num_captions) == (3, 9, 9)
    assert found.complete
    assert found.shapes == {(64, 48): 7, (48, 80): 2}
    assert found.fps == {24.0: 5, 30.0: 1, 29.97: 1, 25.0: 1, 60.0: 1}
    seconds = (30 + 12 + 1 + 19 + 33) / 24 + 41 / 30 + 25 * 1001 / 30000 + 50 / 25 + 28 / 60
    assert found.seconds == pytest.approx(seconds)
    assert found.num_bytes == sum(p.stat().st_size for p in small_folder.rglob("*.tar"))


def test_the_same_tars_without_the_index_say_the_same(small_folder: Path, tmp_path: Path) -> None:
    for tar in small_folder.rglob("*.tar"):
        (tmp_path / tar.name).write_bytes(tar.read_bytes())
    plain, curated = (contents(open_folder(p)) for p in (tmp_path, small_folder))
    assert plain.seconds == pytest.approx(curated.seconds, abs=1e-3)
    for name in Contents.__dataclass_fields__.keys() - {"seconds", "fps"}:
        assert getattr(plain, name) == getattr(curated, name), name
    assert sum(plain.fps.values()) == 9


def test_many_videos_are_not_all_opened(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tar in small_folder.rglob("*.tar"):
        (tmp_path / tar.name).write_bytes(tar.read_bytes())
    monkeypatch.setattr("dataloading.info.MAX_PROBED", 3)
    found = contents(open_folder(tmp_path))
    assert (found.num_clips, found.num_probed, found.complete) == (9, 3, False)
    assert found.seconds > 0
    assert found.num_captions == 3


def test_packing_is_what_the_loader_plans(small_folder: Path) -> None:
    config = LoaderConfig(
        path=str(small_folder), token_budget=48, num_frames=[1, 9], size=[32, 32], fps=None
    )
    packs = packing(config, Compression())
    assert packs["clips_that_fit"] == {1: 9, 9: 8}
    assert 0.5 < packs["fill"] <= 1.0
    with pytest.raises(DataError, match="has room for a window"):
        packing(
            LoaderConfig(
                path=str(small_folder), token_budget=4096, num_frames=[401], size=[32, 32]
            ),
            Compression(),
        )


def test_the_sheet_shows_first_frames_and_captions(small_folder: Path) -> None:
    html, ticks = sheet(small_folder, clips=60)
    assert ticks == 9
    assert html.count('<img src="data:image/jpeg;base64,') == 9
    for name in ("ant", "jay"):
        assert f"a film of {name}" in html
    assert "48x80, 60 frames/s, 0.5 s" in html
    assert not re.search(r"(src|href)=.https?:", html), "nobody is asked for anything"
    few, _ = sheet(small_folder, clips=2)
    assert few.count('<li class="card">') == 2
    assert "2 of 9 clips" in few


def test_hostile_text_is_shown_and_never_run(tmp_path: Path) -> None:
    clips = [
        Clip(clip_id=f"c{i}", num_frames=2, meta=json.dumps({"caption": said}).encode())
        for i, said in enumerate(HOSTILE)
    ]
    name = "<img src=x onerror=alert(1)>"
    html, _ = sheet(make_folder(tmp_path / name, {"a": clips}), clips=60)
    body = html.partition("<body>")[2].rpartition("<script>")[0]
    assert "<script" not in body
    assert not re.search(r"<(?!/?(a|header|h1|p|dl|div|dt|dd|small|main|ul|li|img|span)\b)", body)
    images = re.findall(r"<img[^>]*>", body)
    assert len(images) == len(HOSTILE)
    assert all(re.fullmatch(r'<img src="data:[\w/;,+=:]*" alt="[^"<]*">', i) for i in images)
    assert "&lt;img src=x onerror=&quot;window.__pwned=1;alert(2)&quot;&gt;" in body


def test_a_clip_without_a_picture_or_caption_keeps_its_place(tmp_path: Path) -> None:
    clips = [
        Clip(clip_id="text", video=b"hello"),
        Clip(clip_id="mute", num_frames=2, meta=b'{"caption": ""}'),
    ]
    html, _ = sheet(make_folder(tmp_path, {"a": clips}), clips=9)
    assert "not_a_video" in html
    assert html.count("no picture") == 1
    assert html.count("no caption") == 1
