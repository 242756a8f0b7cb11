"""Small curated folders for tests: synthetic videos, tars, indexes and a manifest."""

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A clip to put in a folder; `video` replaces the synthetic one, `meta` its JSON."""

    clip_id: str
    num_frames: int = 30
    fps: float = 24.0
    width: int = 64
    height: int = 48
    video: bytes | None = None
    meta: bytes | None = None


def pictures(num_frames: int, width: int, height: int, *, tint: int = 0) -> np.ndarray:
    """`uint8 [T, H, W, 3]`; frame i is told from all others by its brightness, 5*i + 2."""
    level = np.minimum(5 * np.arange(num_frames) + 2, 252)
    frames = np.empty((num_frames, height, width, 3), dtype=np.uint8)
    frames[...] = level[:, None, None, None]
    frames[:, : height // 4, : width // 4] = tint
    return frames


def frame_number(frame: np.ndarray) -> int:
    """Which frame of `pictures` this is, by its lower right corner.

    The way through limited range and back moves a level by -2 to +1, hence 1.5 and not 2.
    """
    height, width = frame.shape[:2]
    return round((float(np.median(frame[height // 2 :, width // 2 :])) - 1.5) / 5)


def video_bytes(clip: Clip, folder: Path) -> bytes:
    path = folder / f"{clip.clip_id}.mp4"
    tint = sum(clip.clip_id.encode()) % 200
    frames = pictures(clip.num_frames, clip.width, clip.height, tint=tint)
    write_video(path, frames, fps=clip.fps, crf=1, preset="ultrafast")
    content = path.read_bytes()
    path.unlink()
    return content


def _caption(clip: Clip) -> str:
    return f"a film of {clip.clip_id}"


def _caption_bytes(clip: Clip) -> int:
    """Of the caption in the clip's JSON, where that can be read."""
    try:
        return len(json.loads(clip.meta or b"")["caption"].encode())
    except (ValueError, KeyError, TypeError, AttributeError):
        return len(_caption(clip).encode())


def make_folder(path: Path, shards: dict[str, list[Clip]]) -> Path:
    """Writes `path/shards/NAME.tar`, indexes and manifest; gives `path` back."""
    infos = []
    for name, clips in shards.items():
        tar_path = path / "shards" / f"{name}.tar"
        tar_path.parent.mkdir(parents=True, exist_ok=True)
        members, rows = [], []
        for clip in clips:
            video = clip.video if clip.video is not None else video_bytes(clip, path)
            meta = clip.meta or json.dumps({"caption": _caption(clip)}).encode()
            members += [(f"{clip.clip_id}.mp4", video), (f"{clip.clip_id}.json", meta)]
        with tarfile.open(tar_path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for member, content in members:
                info = tarfile.TarInfo(member)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        with tarfile.open(tar_path) as tar:
            at = {member.name: (member.offset_data, member.size) for member in tar}
        for clip in clips:
            video_at, json_at = at[f"{clip.clip_id}.mp4"], at[f"{clip.clip_id}.json"]
            rows.append(
                IndexRow(
                    clip_id=clip.clip_id,
                    video_offset=video_at[0],
                    video_bytes=video_at[1],
                    json_offset=json_at[0],
                    json_bytes=json_at[1],
                    width=clip.width,
                    height=clip.height,
                    num_frames=clip.num_frames,
                    fps=clip.fps,
                    duration_s=clip.num_frames / clip.fps,
                    caption_bytes=_caption_bytes(clip),
                    keyframes_s=[0.0],
                )
            )
        index = path / "shards" / index_path(f"{name}.tar")
        write_index(index, rows)
        content = tar_path.read_bytes()
        infos.append(
            ShardInfo(
                path=f"{name}.tar",
                num_clips=len(clips),
                num_bytes=len(content),
                duration_s=sum(row.duration_s for row in rows),
                sha256=hashlib.sha256(content).hexdigest(),
                index_sha256=hashlib.sha256(index.read_bytes()).hexdigest(),
            )
        )
    write_manifest(path / "shards", Manifest(shards=infos))
    return path


def make_plan_folder(path: Path, shards: dict[str, list[Clip]]) -> Path:
    """Like `make_folder`, with empty videos: for tests that plan and never decode."""
    return make_folder(
        path, {n: [replace(c, video=b"") for c in clips] for n, clips in shards.items()}
    )
