"""Captions beside the videos, found or named as unreadable. No video, no network."""

import json
from pathlib import Path

import pytest

from common.errors import ConfigError, DataError
from curation.captions import CaptionBook


def test_each_place_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "captions.json").write_text(
        json.dumps({"a.mp4": "common a", "b.mp4": "common b", "c.mp4": "common c"})
    )
    (tmp_path / "b.txt").write_text("beside b\n", encoding="utf-8")
    (tmp_path / "c.json").write_text(json.dumps({"caption": "beside c"}))
    book = CaptionBook(tmp_path)
    assert book.of("a.mp4").of(0, 1) == ("common a", "captions.json")
    assert book.of("b.mp4").of(0, 1) == ("beside b", "b.txt")
    assert book.of("c.mp4").of(0, 1) == ("beside c", "c.json")
    assert book.of("d.mp4").of(0, 1) == ("", "")
    assert book.used == {"captions.json", "b.txt", "c.json"}
    named = tmp_path / "named.json"
    named.write_text(json.dumps({"b.mp4": "named b"}))
    assert CaptionBook(tmp_path, named).of("b.mp4").of(0, 1) == ("named b", "named.json")
    assert CaptionBook(tmp_path, named).of("sub/b.mp4").of(0, 1) == ("named b", "named.json")


def test_a_clip_takes_the_span_it_shares_most_time_with(tmp_path: Path) -> None:
    spans = [
        {"start_s": 0, "end_s": 4, "caption": "first"},
        {"start_s": 4, "end_s": 8, "caption": "second"},
    ]
    (tmp_path / "a.json").write_text(json.dumps({"captions": spans}))
    captions = CaptionBook(tmp_path).of("a.mp4")
    assert captions.of(3.0, 8.0)[0] == "second"
    assert captions.of(0.0, 4.5)[0] == "first"
    assert captions.of(9.0, 10.0) == ("", "")


def test_a_caption_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Straße".encode("latin-1"))
    (tmp_path / "b.json").write_text("{not json")
    (tmp_path / "c.json").write_text(json.dumps({"captions": [{"start_s": 1}]}))
    (tmp_path / "captions.json").write_text(json.dumps({"a.mp4": "fallback"}))
    book = CaptionBook(tmp_path)
    assert book.of("a.mp4").of(0, 1)[0] == "fallback"
    assert book.of("b.mp4").of(0, 1) == ("", "")
    assert book.of("c.mp4").of(0, 1) == ("", "")
    assert "not UTF-8" in book.problems["a.txt"]
    assert "not JSON" in book.problems["b.json"]
    assert "start_s, end_s and caption" in book.problems["c.json: c.mp4"]


def test_a_named_file_must_be_good(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        CaptionBook(tmp_path, tmp_path / "no.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(DataError, match="must map file names"):
        CaptionBook(tmp_path, tmp_path / "list.json")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.json", '{"caption": "cat \\ud83d"}', "half a character"),
        ("a.json", "[" * 200_000, "nested too deeply"),
        ("a.json", '{"captions": [{"start_s": 0, "end_s": 9, "caption": null}]}', "NoneType"),
        ("a.json", '{"captions": [{"start_s": NaN, "end_s": 9, "caption": "x"}]}', "finite"),
        ("a.json", '{"captions": [{"start_s": 0, "end_s": 1e999, "caption": "x"}]}', "finite"),
        ("a.json", '{"caption": null}', "NoneType"),
        ("captions.json", "[" * 200_000, "nested too deeply"),
        ("captions.json", '{"a.mp4": "\\udc00"}', "half a character"),
    ],
)
def test_no_caption_file_ends_a_run(tmp_path: Path, name: str, content: str, problem: str) -> None:
    (tmp_path / name).write_text(content)
    book = CaptionBook(tmp_path)
    assert book.of("a.mp4").of(0, 1) == ("", "")
    assert problem in " ".join(book.problems.values())
    assert all(key.startswith(name) for key in book.problems)


def test_names_may_be_as_long_as_the_disk_allows(tmp_path: Path) -> None:
    name = "n" * 251 + ".mp4"
    (tmp_path / name).write_bytes(b"")
    assert CaptionBook(tmp_path).of(name).of(0, 1) == ("", "")


def test_a_named_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\): name a JSON file"):
        CaptionBook(tmp_path, tmp_path)
