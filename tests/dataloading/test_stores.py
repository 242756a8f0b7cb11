"""Wiring tier. Shards in an object store, a real S3 server in this process. No network."""

import itertools
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest

from cli.commands import data
from common.errors import DataError
from common.ranges import Ranges
from common.store_path import StorePath
from dataloading.config import Compression, LoaderConfig
from dataloading.indexing import index_folder
from dataloading.loader import PackedLoader
from dataloading.samples import SampleLoader
from tests.common.stores import WebServer, s3
from tests.dataloading.packs import digest, loader, take


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch, small_folder: Path) -> Iterator[str]:
    """`small_folder` in a bucket."""
    with s3(monkeypatch) as address:
        request = urllib.request.Request(f"{address}/films", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        upload(small_folder, "s3://films/a b/curated")
        yield "s3://films/a b/curated"


def upload(folder: Path, url: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            (StorePath(url) / path.relative_to(folder).as_posix()).write_bytes(path.read_bytes())


def test_packs_are_those_of_the_local_folder_and_resume_from_either(
    url: str, stream: list[str], small_folder: Path
) -> None:
    remote = loader(Path("x"), path=url, cache_bytes=0)
    with remote:
        assert [digest(batch) for batch in itertools.islice(remote, 5)] == stream[:5]
    state = json.loads(json.dumps(remote.state_dict()))
    resumed = loader(small_folder)
    resumed.load_state_dict(state)
    assert take(resumed, 3) == stream[5:8]


def test_each_clip_is_one_request_and_is_fetched_once_where_it_is_kept(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[tuple[int, int]] = []
    get = obstore.get

    def counted(store: Any, name: str, options: Any = None) -> Any:
        if name.endswith(".tar"):
            assert options is not None
            asked_for.append(options["range"])
        return get(store, name, options=options)

    monkeypatch.setattr(obstore, "get", counted)
    for kept, requests in ((1 << 20, 8), (0, 16)):
        asked_for.clear()
        source = loader(Path("x"), path=url, split="val", cache_bytes=0, remote_cache_bytes=kept)
        with source:
            shown = [i for _ in range(2) for batch in source for i in batch.sample_ids]
        assert len(shown) == requests == 2 * len(set(shown)) or kept
        assert len(asked_for) == (len(set(shown)) if kept else len(shown))


def test_whole_samples_and_the_commands_take_a_url(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = sorted(["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "jay"])
    for threads in (0, 2):
        samples = SampleLoader(url, None, num_threads=threads)
        assert sorted(sample["__key__"] for sample in samples) == expected
    assert index_folder(StorePath(f"{url}/shards")).num_samples == 9
    assert data.run(["info", url]) == 0
    assert data.run(["peek", url, f"output={tmp_path}/sheet.html"]) == 0
    assert (tmp_path / "sheet.html").stat().st_size > 10_000
    assert data.run(["verify", url, "num_threads=2"]) == 0
    assert "9 clips" in capsys.readouterr().out
    assert data.run(["index", f"{url}/shards"]) == 0
    assert sum(1 for _ in SampleLoader(f"{url}/shards", None)) == 9


def test_a_missing_or_changed_shard_is_named(url: str) -> None:
    shard = StorePath(f"{url}/shards/wide/a-000001.tar")
    content = shard.read_bytes()
    source = loader(Path("x"), path=url, cache_bytes=0, remote_cache_bytes=0, split="val")
    samples = SampleLoader(url, None, shuffle=False)
    with source:
        taken = [batch for batch in source if batch is not None]
        assert taken
    names = iter(samples)
    list(itertools.islice(names, 5))
    shard.write_bytes(content[:600] + b"x" + content[601:])
    with pytest.raises(DataError, match=r"wide/a-000001\.tar was changed while it was read"):
        list(names)
    with pytest.raises(DataError, match="was changed"), source:
        list(source)
    shard.write_bytes(content + bytes(512))
    with pytest.raises(DataError, match=r"a-000001.tar has \d+ bytes, the manifest says \d+"):
        loader(Path("x"), path=url)
    shard.unlink()
    with pytest.raises(DataError, match="a-000001.tar is missing"):
        loader(Path("x"), path=url)
    with pytest.raises(DataError, match="curate"):
        PackedLoader(
            LoaderConfig(path="s3://films/none", token_budget=9, num_frames=[1], size=[32, 32]),
            Compression(),
        )


def test_ranges_are_bounded_in_bytes_and_tried_again() -> None:
    content = bytes(range(256)) * 40
    with WebServer(content) as server:
        ranges = Ranges(cache_bytes=1000)
        path = StorePath(server.url)
        for offset in (0, 300, 600, 900, 0, 300, 900):
            assert ranges.read(path, 300, offset) == content[offset : offset + 300]
        assert ranges.used_bytes == 900
        assert len(server.ranges) == 5, "those at 0, 300 and 600 are kept, that at 900 is not"
        server.failing = 2
        assert ranges.read(path, 300, len(content) - 100) == content[-100:]
        server.failing, server.status = 1, 403
        with pytest.raises(DataError, match="credentials"):
            ranges.read(path, 10, 5)
