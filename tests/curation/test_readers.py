"""Other people's loaders open the shards as they are. One process, no network, no GPU."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curation.config import CurateConfig, ShardConfig
from curation.decisions import BlurConfig
from curation.run import curate
from dataloading.energon import META_FOLDER
from dataloading.schema import read_manifest
from tests.curation import footage


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shards")
    shots = [footage.shot(seed, 30, size=(256, 144)) for seed in (1, 2, 3)]
    footage.write(root / "in" / "wide.mp4", np.concatenate(shots))
    footage.write(root / "in" / "tall.mp4", shots[0][:, :, :96])
    (root / "in" / "wide.txt").write_text("Blobs — ünïcode.", encoding="utf-8")
    config = CurateConfig(
        input=str(root / "in"),
        output=str(root / "out"),
        blur=BlurConfig(min=None),
        shard=ShardConfig(target_bytes=60_000),
    )
    assert curate(config).exit_code == 0
    return root / "out" / "shards"


def _ids(shards: Path) -> list[str]:
    import pyarrow.parquet as pq

    rows = pq.read_table(shards.parent / "clips.parquet").to_pylist()
    return sorted(row["clip_id"] for row in rows if row["kept"])


def test_webdataset_reads_them(shards: Path) -> None:
    from webdataset.compat import WebDataset

    paths = [str(shards / shard.path) for shard in read_manifest(shards).shards]
    assert len(paths) >= 3
    seen = {}
    for sample in WebDataset(paths, shardshuffle=False):
        seen[sample["__key__"]] = json.loads(sample["json"])
        assert sample["mp4"][4:8] == b"ftyp"
    assert sorted(seen) == _ids(shards)
    captions = {about["caption"] for about in seen.values()}
    assert captions == {"", "Blobs — ünïcode."}


def test_energon_reads_them_without_prepare(shards: Path) -> None:
    import megatron.energon as energon

    @energon.stateless
    def cook(sample: dict[str, Any]) -> Any:
        return Clip(**energon.basic_sample_keys(sample), about=sample["json"], video=sample["mp4"])

    @energon.edataclass
    class Clip(energon.Sample):  # type: ignore[name-defined]
        about: Any
        video: Any

    class Encoder(energon.DefaultTaskEncoder):  # type: ignore[name-defined]
        cookers = (energon.Cooker(cook),)
        decoder = energon.SampleDecoder(av_decode="AVDecoder")

        def batch(self, samples: list[Any]) -> list[Any]:
            return samples

        def encode_batch(self, batch: list[Any]) -> list[Any]:
            return batch

    dataset = energon.get_train_dataset(
        str(shards),
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
        repeat=False,
    )
    seen = {}
    for batch in energon.get_loader(dataset):
        for sample in batch:
            seen[sample.__key__] = sample
    assert sorted(seen) == _ids(shards)
    for key, sample in seen.items():
        assert sample.about["clip_id"] == key
        width, height = sample.about["width"], sample.about["height"]
        assert next(iter(sample.video.get_video().video_clips)).shape[-2:] == (height, width)


def test_energons_files_depend_on_the_shards_alone(shards: Path, tmp_path: Path) -> None:
    import shutil

    from dataloading.energon import write_energon

    copy = tmp_path / "shards"
    shutil.copytree(shards, copy, ignore=shutil.ignore_patterns("*.idx", META_FOLDER))
    write_energon(copy, read_manifest(copy))
    names = [p.relative_to(shards) for p in shards.rglob("*") if p.is_file()]
    assert any(name.name == "index.sqlite" for name in names)
    assert any(name.suffix == ".idx" for name in names)
    for name in names:
        assert (copy / name).read_bytes() == (shards / name).read_bytes(), name
