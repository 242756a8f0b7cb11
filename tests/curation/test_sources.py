"""Which files of a folder are sources, and whether they stay as they were. No video is decoded."""

import os
from pathlib import Path
from typing import Any

import pytest

from common.errors import MediaError
from curation.executors.local import attempt
from curation.sources import SourceFile, scan, state_of, unchanged
from curation.stage import Failure
from curation.stages import ingest
from curation.stages.ingest import Ingest


def _write(path: Path, data: bytes = b"video") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_links_are_followed_once_and_real_names_win(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    _write(tmp_path / "elsewhere" / "b.mp4")
    _write(folder / "z" / "c.mp4")
    _write(tmp_path / "out" / "d.mp4")
    (folder / "more").symlink_to(tmp_path / "elsewhere")
    (folder / "again").symlink_to(folder / "z")
    (folder / "more.mp4").symlink_to(tmp_path / "elsewhere" / "b.mp4")
    (folder / "z" / "loop").symlink_to(folder)
    (folder / "result").symlink_to(tmp_path / "out")
    found = scan(folder, without=tmp_path / "out")
    assert [file.source for file in found.files] == ["more/b.mp4", "more.mp4", "z/c.mp4"]
    assert not found.refused
    assert not found.others


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "good.mp4")
    _write(tmp_path / "closed" / "a.mp4")
    _write(tmp_path / "notes.txt")
    _write(tmp_path / ".hidden.mp4")
    (tmp_path / "dangling.mp4").symlink_to("/nowhere/q.mp4")
    (tmp_path / "itself.mp4").symlink_to(tmp_path / "itself.mp4")
    os.mkfifo(tmp_path / "pipe.mp4")
    bad = os.fsdecode(os.fsencode(tmp_path) + b"/na\xefve.mp4")
    _write(Path(bad))
    whole = os.scandir

    def closed(path: Any) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied")
        return whole(path)

    monkeypatch.setattr(os, "scandir", closed)
    found = scan(tmp_path)
    assert [file.source for file in found.files] == ["good.mp4"]
    assert found.others == ["notes.txt"]
    reasons = {refusal.source: refusal.reason for refusal in found.refused}
    assert reasons == {
        "closed/": "unreadable",
        "dangling.mp4": "missing",
        "itself.mp4": "unreadable",
        "na\\xefve.mp4": "bad_name",
        "pipe.mp4": "unreadable",
    }
    assert all(str(tmp_path) in refusal.path for refusal in found.refused)
    alone = scan(Path(bad))
    assert [refusal.reason for refusal in alone.refused] == ["bad_name"]


def _cut_off(path: Path) -> None:
    """What a decoder meets whose file is overwritten under it."""
    _write(path, b"half of")
    raise MediaError("no_moov", "cut off")


def test_a_file_that_was_written_to_is_not_used(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.mp4")
    state = state_of(str(path))
    with unchanged(str(path), state):
        pass
    with pytest.raises(MediaError, match="changed"), unchanged(str(path), state):
        _write(path, b"other bytes")
    with pytest.raises(MediaError, match="changed"), unchanged(str(path), state):
        pytest.fail("the work began")
    state = state_of(str(path))
    with pytest.raises(MediaError, match="changed"), unchanged(str(path), state):
        _cut_off(path)
    path.unlink()
    with pytest.raises(MediaError, match="missing"), unchanged(str(path), state):
        pytest.fail("the work began")


def _ingest(path: Path) -> Any:
    (result,) = attempt(Ingest(retries=1), SourceFile(source=path.name, path=str(path)))
    return result


def test_a_file_that_grows_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path / "a.mp4")
    whole = ingest.video_id_of
    pieces = [b"a", b"b"]

    def growing(at: str) -> str:
        video_id = whole(at)
        if pieces:
            with Path(at).open("ab") as file:
                file.write(pieces.pop())
        return video_id

    monkeypatch.setattr(ingest, "video_id_of", growing)
    failure = _ingest(path)
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.attempts, failure.lasting) == ("being_written", 2, False)
    pieces.append(b"c")
    taken = _ingest(path)
    assert taken.content_id == whole(path)
    assert taken.state == state_of(str(path))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(2, "gone"), "unreadable"),
        (OSError(5, "Input/output error"), "unreadable"),
    ],
)
def test_errors_of_reading_are_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, reason: str
) -> None:
    def broken(at: Path) -> str:
        raise error

    monkeypatch.setattr(ingest, "video_id_of", broken)
    failure = _ingest(_write(tmp_path / "a.mp4"))
    assert (failure.reason, failure.lasting) == (reason, False)
    assert _ingest(tmp_path / "nowhere.mp4").reason == "missing"
