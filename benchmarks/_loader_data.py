"""The data that `benchmarks.loader` reads, drawn from fixed seeds."""

import hashlib
import io
import json
import random
import tarfile
from pathlib import Path

import numpy as np

from common.media import write_video
from dataloading.schema import (
    IndexRow,
    Manifest,
    ShardInfo,
    index_path,
    write_index,
    write_manifest,
)

_PER_SHARD = 250


def make_shards(folder: Path, num_samples: int) -> None:
    """Tars of about 85 KB a sample: 50 KB at random, one of 20 videos, a JSON."""
    folder.mkdir(parents=True)
    rnd = random.Random(0)
    videos = [video(folder, seed, num_frames=32, size=(320, 240)) for seed in range(20)]
    for first in range(0, num_samples, _PER_SHARD):
        with tarfile.open(folder / f"s-{first // _PER_SHARD:06d}.tar", "w") as tar:
            for i in range(first, min(first + _PER_SHARD, num_samples)):
                said = {"caption": f"number {i} " * 20, "tokens": rnd.randint(32, 1024), "id": i}
                _add(tar, f"{i:08d}.mp4", videos[i % len(videos)])
                _add(tar, f"{i:08d}.json", json.dumps(said).encode())
                _add(tar, f"{i:08d}.bin", rnd.randbytes(50_000))


def make_curated(path: Path, *, num_clips: int = 400, decodable: bool = True) -> None:
    """A curated folder of short clips; without videos in them where only the plan is wanted."""
    path.mkdir(parents=True)
    rnd = random.Random(1)
    kinds = [24, 40, 60]
    videos = [video(path, n, num_frames=n, size=(64, 64)) if decodable else b"" for n in kinds]
    infos = []
    for first in range(0, num_clips, _PER_SHARD):
        name = f"s-{first // _PER_SHARD:06d}.tar"
        tar_path = path / "shards" / name
        tar_path.parent.mkdir(exist_ok=True)
        rows = []
        with tarfile.open(tar_path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(first, min(first + _PER_SHARD, num_clips)):
                kind = rnd.randrange(len(kinds))
                at = _add(tar, f"{i:08d}.mp4", videos[kind])
                said = json.dumps({"caption": f"number {i}"}).encode()
                said_at = _add(tar, f"{i:08d}.json", said)
                rows.append(
                    IndexRow(
                        clip_id=f"{i:08d}",
                        video_offset=at,
                        video_bytes=len(videos[kind]),
                        json_offset=said_at,
                        json_bytes=len(said),
                        width=64,
                        height=64,
                        num_frames=kinds[kind],
                        fps=24.0,
                        duration_s=kinds[kind] / 24,
                        caption_bytes=len(f"number {i}"),
                        keyframes_s=[0.0],
                    )
                )
        index = path / "shards" / index_path(name)
        write_index(index, rows)
        content = tar_path.read_bytes()
        infos.append(
            ShardInfo(
                path=name,
                num_clips=len(rows),
                num_bytes=len(content),
                duration_s=sum(row.duration_s for row in rows),
                sha256=hashlib.sha256(content).hexdigest(),
                index_sha256=hashlib.sha256(index.read_bytes()).hexdigest(),
            )
        )
    write_manifest(path / "shards", Manifest(shards=infos))


def video(folder: Path, seed: int, *, num_frames: int, size: tuple[int, int]) -> bytes:
    """A drifting gradient under light noise."""
    rnd = np.random.default_rng(seed)
    width, height = size
    x = np.arange(width)[None, None, :, None]
    y = np.arange(height)[None, :, None, None]
    t = np.arange(num_frames)[:, None, None, None]
    wave = 110 + 60 * np.sin((x + (2 + seed % 3) * t) / 23 + np.arange(3)) + 50 * np.cos(y / 31)
    noise = rnd.normal(0, 3, (num_frames, height, width, 3))
    path = folder / f"video-{seed}.mp4"
    write_video(path, np.clip(wave + noise, 0, 255).astype(np.uint8), fps=24.0, crf=26)
    content = path.read_bytes()
    path.unlink()
    return content


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> int:
    """Where its content begins."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    at = tar.offset + 512
    tar.addfile(info, io.BytesIO(content))
    return at
