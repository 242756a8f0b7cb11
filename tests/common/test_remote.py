"""Files on a web server and in an S3 store, both real servers in this process. No network."""

import io
from pathlib import Path

import pytest

from common import remote
from common.errors import MediaError, VfmError
from common.media import VideoReader
from common.remote import RemoteFile, is_url, remote_objects, remote_state
from common.store_path import StorePath
from tests.common.stores import WebServer, s3
from tests.curation import footage

MIB = 1 << 20


def test_urls_are_told_from_paths() -> None:
    assert is_url("s3://bucket/key")
    assert is_url("https://host/a b.mp4")
    assert not is_url("/data/s3://x")
    assert not is_url("C://x")
    assert not is_url("s3:///nothing")


def test_reading_on_fetches_ahead_and_jumping_does_not() -> None:
    data = bytes(range(256)) * (40 * MIB // 256)
    with WebServer(data) as server, RemoteFile(server.url) as file:
        assert file.seek(-10, io.SEEK_END) == len(data) - 10
        assert file.read() == data[-10:]
        file.seek(0)
        assert file.read(20 * MIB) == data[: 20 * MIB]
        assert file.tell() == 20 * MIB
        sizes = [(end - start) // MIB for start, end in server.ranges]
        assert sizes == [1, 1, 2, 4, 8, 8], "the first is that of the end"
        file.seek(19 * MIB)
        file.read(100)
        assert len(server.ranges) == len(sizes), "what was just read is still held"


def test_a_server_in_trouble_is_asked_again_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_PAUSE_S", 0.01)
    with WebServer(b"x" * 1000) as server:
        server.failing = 2
        with RemoteFile(server.url) as file:
            server.failing = 2
            assert file.read() == b"x" * 1000
        server.failing = 10_000
        with pytest.raises(MediaError, match=server.url) as told:
            remote_state(server.url)
        assert told.value.reason == "unreadable"
        assert "\n" not in told.value.detail
        assert 10_000 - server.failing <= 15


def test_refusals_are_one_line_that_says_what_to_do() -> None:
    with WebServer(b"x") as server:
        for status, reason, words in (
            (403, "unreadable", "credentials"),
            (404, "missing", "exist"),
        ):
            server.failing, server.status = 1, status
            with pytest.raises(MediaError, match=words) as told:
                RemoteFile(server.url)
            assert told.value.reason == reason
            assert "\n" not in told.value.detail


def test_a_video_is_read_by_ranges(tmp_path: Path) -> None:
    path = footage.write(tmp_path / "a.mp4", footage.shot(1, 20))
    with VideoReader(path) as reader:
        expected = [frame.pts_s for frame in reader.frames()]
    with WebServer(path.read_bytes()) as server, VideoReader(server.url) as reader:
        assert [frame.pts_s for frame in reader.frames()] == expected
        assert reader.info.num_bytes == path.stat().st_size
        assert server.ranges


def test_a_store_is_listed_and_its_refusals_are_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore
    from obstore.store import from_url

    with s3(monkeypatch) as address:
        import urllib.request

        urllib.request.urlopen(
            urllib.request.Request(f"{address}/footage", method="PUT"), timeout=30
        ).close()
        store = from_url("s3://footage", client_options={"allow_http": True})
        for key in ("raw/b c#1.mp4", "raw/a.mp4", "rawer/no.mp4", "other.mp4"):
            obstore.put(store, key, key.encode())
        states = remote_objects("s3://footage/raw/")
        found = list(states)
        assert found == ["s3://footage/raw/a.mp4", "s3://footage/raw/b c#1.mp4"]
        assert states == {url: remote_state(url) for url in found}, "a list tells what HEAD tells"
        assert list(remote_objects("s3://footage/other.mp4")) == ["s3://footage/other.mp4"]
        with RemoteFile(found[1]) as file:
            assert file.read() == b"raw/b c#1.mp4"
        before = remote_state(found[0])
        obstore.put(store, "raw/a.mp4", b"raw/A.mp4")
        assert remote_state(found[0]).tag != before.tag
        with pytest.raises(VfmError, match="no-such-bucket.*no such bucket"):
            remote_objects("s3://no-such-bucket/raw")
        with pytest.raises(MediaError, match="does not exist"):
            RemoteFile("s3://footage/raw/absent.mp4")


@pytest.mark.parametrize(
    ("url", "config"),
    [
        ("s3://bucket/folder/a.mp4", {"bucket": "bucket"}),
        ("gs://bucket/folder/a.mp4", {"bucket": "bucket"}),
        ("az://box/folder/a.mp4", {"container_name": "box"}),
    ],
)
def test_every_kind_of_store_is_reached_by_its_url(
    monkeypatch: pytest.MonkeyPatch, url: str, config: dict[str, str]
) -> None:
    """Of Google's and Azure's no server was at hand, so this is all that was run of them."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "me")
    store, key = remote._place(url)
    assert key == "folder/a.mp4"
    assert store.prefix is None
    assert {name: store.config.get(name) for name in config} == config
    path = StorePath(url)
    assert (str(path.parent), path.name, path.suffix) == (url[:-6], "a.mp4", ".mp4")
    assert path.relative_to(path.parent.parent).as_posix() == "folder/a.mp4"
