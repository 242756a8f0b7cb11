"""The loader on real clips: webdataset reads the same shards, memory changes no window.

Skipped where the footage is absent; the other files test the same code on synthetic video.
"""

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from common.media import probe
from dataloading.config import Compression, LoaderConfig
from dataloading.loader import PackedLoader
from tests.dataloading.folder import Clip, make_folder

FOOTAGE = Path(os.environ.get("VFM_TEST_VIDEOS", "../shared/videos")) / "clips"
NUM_CLIPS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not FOOTAGE.is_dir():
        pytest.skip(f"no footage at {FOOTAGE}: set VFM_TEST_VIDEOS")
    captions = json.loads((FOOTAGE / "captions.json").read_text())
    clips = []
    for path in sorted(FOOTAGE.glob("*.mp4"), key=lambda p: p.stat().st_size)[:NUM_CLIPS]:
        info = probe(path)
        clips.append(
            Clip(
                clip_id=path.stem.replace(".", "_"),
                num_frames=info.num_frames,
                fps=info.fps,
                width=info.width,
                height=info.height,
                video=path.read_bytes(),
                meta=json.dumps({"caption": captions[path.name]}).encode(),
            )
        )
    return make_folder(
        tmp_path_factory.mktemp("real"), {"a-000000": clips[::2], "b-000000": clips[1::2]}
    )


def loader(folder: Path, *, split: str = "train", **changes) -> PackedLoader:
    config = LoaderConfig(
        path=str(folder),
        token_budget=200,
        num_frames=[1, 9, 17],
        size=[96, 64],
        resize="area",
        fps=12.0,
        pool_size=8,
        **changes,
    )
    return PackedLoader(config, Compression(), split=split)


def test_all_clips_are_read_and_memory_changes_nothing(folder: Path) -> None:
    with loader(folder) as kept, loader(folder, cache_bytes=0) as read:
        for one, other in itertools.islice(zip(kept, read, strict=False), 8):
            assert one.sample_ids == other.sample_ids
            assert one.captions == other.captions
            assert all(one.captions)
            for a, b in zip(one.frames or [], other.frames or [], strict=True):
                assert torch.equal(a, b)
                assert a.float().std() > 5  # a picture, not a flat field
        assert kept.skipped == read.skipped == {}


def test_validation_holds_one_window_of_each_clip(folder: Path) -> None:
    with loader(folder, split="val") as source:
        ids = [i for batch in source for i in batch.sample_ids]
        assert len(ids) == len(set(ids)) == NUM_CLIPS
        assert source.skipped == {}


def test_webdataset_reads_the_same_members(folder: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    shard = str(folder / "shards" / "a-000000.tar")
    samples = list(webdataset.WebDataset(shard, shardshuffle=False).decode())
    source = loader(folder)
    assert [s["__key__"] for s in samples] == source._table.clip_ids(np.arange(len(samples)))
    assert all(sample["json"]["caption"] for sample in samples)
