"""The whole pipeline from an S3 server to an S3 server, also one in trouble, gives the bytes that a
local folder holds. Servers are in this process. No network.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import from_url

from cli.main import main
from common import remote
from common.errors import ConfigError, VfmError
from common.store_path import Place, StorePath
from curation.config import CurateConfig, RefilterConfig, ReshardConfig, ShardConfig
from curation.decisions import BlurConfig
from curation.executors.config import RayConfig
from curation.refilter import refilter, reshard, settings_after
from curation.run import curate
from tests.common.faulty import FAULTS, FaultyProxy
from tests.common.stores import new_bucket, s3
from tests.curation import footage

ROOT = Path(__file__).resolve().parents[2]
ENV = {"PYTHONPATH": str(ROOT)}
DRIVER = """
import sys
from curation.config import CurateConfig, ShardConfig
from curation.decisions import BlurConfig
from curation.run import curate
print("begin", flush=True)
config = CurateConfig(
    input=sys.argv[1], output=sys.argv[2], blur=BlurConfig(min=None),
    shard=ShardConfig(target_bytes=60_000),
)
sys.exit(curate(config).exit_code)
"""
OWN = (
    *("summary.json", "report/engine.jsonl", "report/index.html"),
    *("failed.jsonl", "videos.parquet", "config.yaml"),
)
"""What names times or places; the failures and videos are compared without."""


def _config(input_: Path | str, output: Path | str, **more: object) -> CurateConfig:
    return CurateConfig(
        input=str(input_),
        output=str(output),
        blur=BlurConfig(min=None),
        shard=ShardConfig(target_bytes=60_000),
        **more,  # pyright: ignore[reportArgumentType]
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Footage, and its curation on the disk."""
    folder = tmp_path_factory.mktemp("local")
    videos = folder / "in"
    for number in range(3):
        shots = [footage.shot(10 * number + k, 25, size=(256, 144)) for k in range(3)]
        footage.write(videos / "sub" / f"v{number}.mp4", np.concatenate(shots))
    (videos / "sub" / "v1.txt").write_text("what is said of it")
    (videos / "captions.json").write_text('{"v2.mp4": "said for all"}')
    (videos / "copy.mp4").write_bytes((videos / "sub" / "v0.mp4").read_bytes())
    (videos / "broken.mp4").write_text("words " * 50)
    assert curate(_config(videos, folder / "out")).exit_code == 1
    return videos, folder / "out"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, made: tuple[Path, Path]) -> Iterator[str]:
    """An S3 that holds the footage; its address."""
    with s3(monkeypatch) as address:
        new_bucket(address, "footage")
        bucket = from_url("s3://footage", client_options={"allow_http": True})
        for path in made[0].rglob("*.*"):
            obstore.put(bucket, f"raw/{path.relative_to(made[0])}", path.read_bytes())
        yield address


def _local(output: Path) -> dict[str, str]:
    files = (p for p in output.rglob("*") if p.is_file())
    named = {str(p.relative_to(output)): p for p in files}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in named.items()
        if name not in OWN and not name.startswith("ledger/")
    }


def _stored(output: str) -> dict[str, str]:
    root = StorePath(output)
    return {
        name: hashlib.sha256((root / name).read_bytes()).hexdigest()
        for name, _ in root.keys()  # noqa: SIM118
        if name not in OWN and not name.startswith("ledger/")
    }


def _videos(place: Place, input_: str) -> list[dict[str, object]]:
    table = pq.read_table(pa.BufferReader((place / "videos.parquet").read_bytes()))
    return [
        {**row, "detail": (row["detail"] or "").replace(input_, "IN")} for row in table.to_pylist()
    ]


def _failed(text: str, input_: str) -> list[dict[str, object]]:
    """Lines of failed.jsonl without what names the place."""
    lines = [json.loads(line.replace(input_, "IN")) for line in text.splitlines()]
    return [{k: v for k, v in line.items() if k != "command"} for line in lines]


def _spooled(output: str) -> list[str]:
    return [name for name, _ in (StorePath(output) / "ledger" / "spool").keys()]  # noqa: SIM118


def test_a_store_gets_the_bytes_that_a_folder_gets(
    made: tuple[Path, Path], store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = curate(_config("s3://footage/raw", "s3://footage/out"))
    assert result.exit_code == 1
    assert _stored("s3://footage/out") == _local(made[1])
    assert len([n for n in _stored("s3://footage/out") if n.endswith(".tar")]) >= 3
    videos = _videos(StorePath("s3://footage/out"), "s3://footage/raw")
    assert videos == _videos(made[1], str(made[0])) and len(videos) == 5
    told = StorePath("s3://footage/out/failed.jsonl").read_text()
    expected = (made[1] / "failed.jsonl").read_text()
    assert _failed(told, "s3://footage/raw") == _failed(expected, str(made[0]))
    assert "input=s3://footage/raw/broken.mp4 output=s3://footage/out-again/" in told
    assert not _spooled("s3://footage/out"), "what shards hold is not kept twice"
    assert StorePath("s3://footage/out/report/index.html").is_file()
    assert not list(tmp_path.iterdir()), "nothing is written here"


def test_a_store_in_trouble_gets_the_same_bytes(
    made: tuple[Path, Path], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of fault, on a sixth of all requests."""
    monkeypatch.setattr(remote, "_CLIENT", {**remote._CLIENT, "timeout": "1s"})
    monkeypatch.setattr(remote, "_PAUSE_S", 0.05)
    with FaultyProxy(store, share=0.15, seed=7) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        assert curate(_config("s3://footage/raw", "s3://footage/out")).exit_code == 1
        assert set(proxy.met) == set(FAULTS), "the run was too short to meet them all"
    monkeypatch.setenv("AWS_ENDPOINT_URL", store)
    assert _stored("s3://footage/out") == _local(made[1])
    assert not _spooled("s3://footage/out")


def test_a_finished_run_does_nothing_again_and_starts_at_once(
    made: tuple[Path, Path], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    curate(_config("s3://footage/raw", "s3://footage/out"))
    before = _stored("s3://footage/out")
    with FaultyProxy(store, share=0.0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        again = curate(_config("s3://footage/raw", "s3://footage/out"))
        asked = list(proxy.asked)
    # The broken file is no lasting failure: its reason may be the place where it lies.
    assert again.summary["stages"].keys() <= {"ingest"}
    assert again.summary["decodes"] == {"analysis": 3, "transcode": 3}
    assert _stored("s3://footage/out") == before
    videos = [path for method, path in asked if "/raw/sub/" in path and path.endswith(".mp4")]
    assert not videos, "no video is looked at again, the list says that they are as they were"


def test_new_work_begins_before_old_results_are_read(
    store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    curate(_config("s3://footage/raw", "s3://footage/out"))
    path = footage.write(tmp_path / "z.mp4", footage.shot(77, 30))
    StorePath("s3://footage/raw/z.mp4").upload(path)
    with FaultyProxy(store, share=0.0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        again = curate(_config("s3://footage/raw", "s3://footage/out"))
        asked = [(method, path) for method, path in proxy.asked if "list-type" not in path]
    assert again.summary["stages"]["analyse"]["items"] == 1
    begun = asked.index(("GET", next(p for m, p in asked if m == "GET" and "/raw/z.mp4" in p)))
    thumb = next(n for n, (m, p) in enumerate(asked) if m == "PUT" and "/thumbs/" in p)
    read = next(n for n, (m, p) in enumerate(asked) if m == "GET" and "/work/" in p)
    assert begun < thumb < read
    assert begun < 20, "and what comes before it does not grow with what was done"


def test_a_stored_folder_is_decided_again(made: tuple[Path, Path], store: str) -> None:
    curate(_config("s3://footage/raw", "s3://footage/out", encode=False))
    assert not StorePath("s3://footage/out/shards").is_dir()
    assert reshard(ReshardConfig(folder="s3://footage/out")).exit_code == 0
    expected = _local(made[1])
    got = _stored("s3://footage/out")
    for name in (name for name in expected if name.startswith("shards/")):
        assert got[name] == expected[name]
    settings = settings_after(RefilterConfig(folder="s3://footage/out"))
    assert settings.output == "s3://footage/out"
    again = refilter(RefilterConfig(folder="s3://footage/out", target_yield=0.5))
    assert 0 < again.summary["clips_kept"] < 9
    assert again.summary["shards"]["to_leave_out"] > 0
    with pytest.raises(ConfigError, match="s3://footage/out.*leave rewrite out"):
        reshard(ReshardConfig(folder="s3://footage/out", rewrite=True))
    with pytest.raises(ConfigError, match="no longer kept"):
        reshard(ReshardConfig(folder="s3://footage/out"))
    with pytest.raises(ConfigError, match="there is no folder s3://footage/nothing"):
        refilter(RefilterConfig(folder="s3://footage/nothing"))


def test_what_cannot_be_written_is_one_line(
    made: tuple[Path, Path], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = made[0]
    with pytest.raises(VfmError, match="s3://absent/out.*no such bucket") as absent:
        curate(_config(videos, "s3://absent/out"))
    with pytest.raises(VfmError, match="a web server takes no files"):
        curate(_config(videos, "https://host/out"))
    with pytest.raises(VfmError, match="one inside the other"):
        curate(_config("s3://footage/raw", "s3://footage/raw/out"))
    with FaultyProxy(store, share=0.0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
        with pytest.raises(VfmError, match="s3://footage/out.*credentials") as denied:
            curate(_config(videos, "s3://footage/out"))
        assert len(proxy.asked) == 1, "a refusal is not asked again"
    for told in (absent, denied):
        assert "\n" not in str(told.value)


def test_killed_drivers_in_a_store_end_the_same(made: tuple[Path, Path], store: str) -> None:
    """Each one takes over the lock of the one that was killed before it."""
    words = [sys.executable, "-c", DRIVER, "s3://footage/raw", "s3://footage/out"]
    chance = random.Random(2)
    killed = 0
    for most_s in (0.3, 1.0, 3.0):
        driver = subprocess.Popen(
            words, env={**os.environ, **ENV}, stdout=subprocess.PIPE, text=True
        )
        assert driver.stdout is not None and driver.stdout.readline() == "begin\n"
        time.sleep(chance.uniform(0.1, most_s))
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
        killed += driver.returncode == -signal.SIGKILL
    assert killed, "the runs were too short to be killed"
    last = subprocess.run(
        words, env={**os.environ, **ENV}, capture_output=True, text=True, check=False, timeout=200
    )
    assert last.returncode == 1, last.stderr
    assert _stored("s3://footage/out") == _local(made[1])


def test_workers_of_ray_write_to_the_store(made: tuple[Path, Path], store: str) -> None:
    ray = RayConfig(num_cpus=2, num_gpus=0, object_store_mib=80)
    config = _config("s3://footage/raw", "s3://footage/out", executor="ray", ray=ray)
    assert curate(config).exit_code == 1
    assert _stored("s3://footage/out") == _local(made[1])
    assert StorePath("s3://footage/out/report/engine.jsonl").is_file()


def test_the_commands_take_urls(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["input=s3://footage/raw/sub", "output=s3://footage/out", "encode=false"]
    assert main(["curate", *where]) == 0, capsys.readouterr().err
    assert "all settings: s3://footage/out/config.yaml" in capsys.readouterr().out
    assert "encode: false" in StorePath("s3://footage/out/config.yaml").read_text()
    assert main(["curate", *where, "dry_run=true"]) == 0
    told = capsys.readouterr().out
    assert "3 files to read" in told and "s3://footage/out, which is continued" in told
    assert main(["refilter", "s3://footage/out", "target_yield=0.5", "dry_run=true"]) == 0
    assert "kept: " in capsys.readouterr().out
    assert main(["shard", "s3://footage/out", "dry_run=true"]) == 0
    assert "shards: 0 clips" in capsys.readouterr().out
    for words, said in ((["data", "info"], "holds no shards"), (["view"], "copy its folder")):
        assert main([*words, "s3://footage/out"]) == 2
        assert said in capsys.readouterr().err
