"""A curation of URLs and of lists gives what one of the same files on the disk gives."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from common.errors import ConfigError, VfmError
from curation.config import CurateConfig
from curation.decisions import BlurConfig
from curation.run import curate
from curation.sources import find_sources
from tests.common.stores import s3
from tests.curation import footage


def _config(input_: str, output: Path | str) -> CurateConfig:
    return CurateConfig(input=input_, output=str(output), blur=BlurConfig(min=None))


def _clips(output: Path) -> list[tuple[str, str]]:
    rows = pq.read_table(output / "clips.parquet").to_pylist()
    return [(row["source"], row["clip_id"]) for row in rows]


def _tars(output: Path) -> dict[str, bytes]:
    tars = sorted((output / "shards").rglob("*.tar"))
    return {str(path.relative_to(output)): path.read_bytes() for path in tars}


def test_a_store_gives_the_same_clips_as_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import urllib.request

    import obstore
    from obstore.store import from_url

    local = tmp_path / "in"
    footage.write(local / "a.mp4", np.concatenate([footage.shot(1, 30), footage.shot(2, 30)]))
    footage.write(local / "sub" / "b.mkv", footage.shot(4, 30))
    (local / "text.mp4").write_text("words " * 100)
    assert curate(_config(str(local), tmp_path / "one")).exit_code == 1
    with s3(monkeypatch) as address:
        make = urllib.request.Request(f"{address}/footage", method="PUT")
        urllib.request.urlopen(make, timeout=30).close()
        store = from_url("s3://footage", client_options={"allow_http": True})
        for path in sorted(local.rglob("*.m*")):
            obstore.put(store, f"raw/{path.relative_to(local)}", path.read_bytes())
        result = curate(_config("s3://footage/raw", tmp_path / "two"))
        assert result.exit_code == 1
        assert result.summary["decodes"] == {"analysis": 2, "transcode": 2}
        again = curate(_config("s3://footage/raw", tmp_path / "two"))
        assert again.summary["stages"].keys() <= {"ingest"}, "nothing is read twice"
    assert _clips(tmp_path / "two") == _clips(tmp_path / "one")
    assert _tars(tmp_path / "two") == _tars(tmp_path / "one")


def test_a_list_names_files_folders_and_urls(tmp_path: Path) -> None:
    footage.write(tmp_path / "more" / "b.mp4", footage.shot(4, 3))
    footage.write(tmp_path / "a.mp4", footage.shot(4, 3))
    listed = tmp_path / "input.txt"
    listed.write_text("# first\n\na.mp4\nmore\ns3://bucket/c.mp4\nabsent.mp4\na.mp4\n")
    found = find_sources(str(listed))
    assert [file.source for file in found.files] == ["a.mp4", "more/b.mp4", "s3://bucket/c.mp4"]
    assert [(r.source, r.reason) for r in found.refused] == [("absent.mp4", "missing")]
    assert "link" not in found.refused[0].detail


def test_a_list_is_curated(tmp_path: Path) -> None:
    footage.write(tmp_path / "in" / "a.mp4", footage.shot(4, 30))
    (tmp_path / "list.txt").write_text("in/a.mp4\n")
    result = curate(_config(str(tmp_path / "list.txt"), tmp_path / "out"))
    assert result.exit_code == 0
    assert [source for source, _ in _clips(tmp_path / "out")] == ["in/a.mp4"]


def test_what_cannot_be_done_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="a web server takes no files"):
        curate(_config(str(tmp_path), "http://host/out"))
    with s3(monkeypatch), pytest.raises(VfmError, match="no-bucket-here.*no such bucket"):
        curate(_config("s3://no-bucket-here/raw", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
