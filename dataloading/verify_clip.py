"""One clip of a shard against what is stated of it: pictures, times, texts."""

import json
from dataclasses import dataclass
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from common.errors import DataError, MediaError
from common.media import VideoReader
from common.store_path import Place
from dataloading.defects import Defect
from dataloading.folder import Member, read_member

_RATE_TOLERANCE = 0.01
_KEYFRAME_TOLERANCE_S = 1e-3


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What an index, or a JSON with the same names, says of a clip; none where it is silent."""

    by: str
    num_frames: int
    width: int
    height: int
    fps: float
    duration_s: float | None = None
    caption_bytes: int | None = None
    keyframes_s: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ClipJob:
    """A clip to check; `stated` is none where the folder has no index of ours."""

    shard: str
    key: str
    video: Member | None
    json: Member | None
    texts: tuple[Member, ...] = ()
    tensors: Member | None = None
    """Of an encoded window, in place of a video."""
    stated: Stated | None = None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a decode of the whole video gave."""

    num_frames: int
    width: int
    height: int
    header_fps: float
    end_s: float
    longest_s: float
    """Of all pictures, the one that is shown longest."""
    keyframes_s: tuple[float, ...]


def check_clip(root: Place, job: ClipJob) -> list[Defect]:
    """All defects of one clip, none where it is sound. Raises nothing for bad data."""
    defects: list[Defect] = []

    def note(member: Member, what: str, value: str) -> None:
        defects.append(Defect(shard=job.shard, member=member.name, what=what, value=value))

    try:
        about: dict[str, Any] | None = None
        if job.json is not None:
            about, faults = _read_json(read_member(root, job.shard, job.json), job.stated)
            for what, value in faults:
                note(job.json, what, value)
        for text in job.texts:
            fault = _not_utf8(read_member(root, job.shard, text))
            if fault:
                note(text, "not_utf8", fault)
        if job.tensors is not None:
            for what, value in _check_tensors(read_member(root, job.shard, job.tensors)):
                note(job.tensors, what, value)
        if job.video is not None:
            stated = job.stated or _stated_by_json(about or {})
            for what, value in _check_video(read_member(root, job.shard, job.video), stated):
                note(job.video, what, value)
    except (DataError, MediaError) as error:
        defects.append(Defect(shard=job.shard, member=job.key, what="unreadable", value=str(error)))
    return defects


def _read_json(
    content: bytes, stated: Stated | None
) -> tuple[dict[str, Any] | None, list[tuple[str, str]]]:
    fault = _not_utf8(content)
    if fault:
        return None, [("not_utf8", fault)]
    try:
        about = json.loads(content)
    except (ValueError, RecursionError) as error:
        return None, [("bad_json", str(error))]
    if not isinstance(about, dict):
        return None, [("bad_json", f"holds a {type(about).__name__}, an object is needed")]
    caption = about.get("caption")
    if stated is None:
        wrong = caption is not None and not isinstance(caption, str)
        return about, [("no_caption", f"'caption' is {caption!r}, no text")] if wrong else []
    if not isinstance(caption, str):
        return about, [("no_caption", f"'caption' is {caption!r}, a text is needed")]
    # JSON can spell half a sign, which no encoding can.
    num_bytes = len(caption.encode("utf-8", "replace"))
    if caption.encode("utf-8", "replace").decode() != caption:
        return about, [("not_utf8", "the caption holds half of a surrogate pair")]
    if stated.caption_bytes is not None and num_bytes != stated.caption_bytes:
        said = f"{num_bytes} bytes, {stated.by} says {stated.caption_bytes}"
        return about, [("wrong_caption_bytes", said)]
    return about, []


def _check_tensors(content: bytes) -> list[tuple[str, str]]:
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        return [("bad_latents", f"no safetensors: {error}")]
    faults = [] if "latents" in tensors else [("missing_member", "it has no latents")]
    return faults + [
        ("not_finite", f"{name} holds values that are not finite")
        for name, tensor in tensors.items()
        if not bool(tensor.isfinite().all())
    ]


def _not_utf8(content: bytes) -> str:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        return f"byte {error.start} is 0x{byte:02x}, which is no UTF-8 ({error.reason})"
    return ""


def _stated_by_json(about: dict[str, Any]) -> Stated | None:
    """Only a JSON that holds all of these speaks of the video as it lies there; other tools' speak
    of the original."""
    whole = [about.get(name) for name in ("num_frames", "width", "height")]
    fps = about.get("fps")
    if not all(isinstance(v, int) for v in whole) or not isinstance(fps, int | float):
        return None
    num_frames, width, height = (int(v) for v in whole if v is not None)
    return Stated(by="its JSON", num_frames=num_frames, width=width, height=height, fps=float(fps))


def _check_video(video: bytes, stated: Stated | None) -> list[tuple[str, str]]:
    try:
        seen, faults = _decode(video)
    except MediaError as error:
        return [(error.reason, error.detail)]
    return faults if stated is None else [*faults, *_differences(seen, stated)]


def _decode(video: bytes) -> tuple[Seen, list[tuple[str, str]]]:
    with VideoReader(video) as reader:
        num_frames = 0
        longest_s = 0.0
        keyframes_s = []
        size = reader.info.width, reader.info.height
        faults: list[tuple[str, str]] = []
        for raw in reader.frames():
            num_frames += 1
            longest_s = max(longest_s, raw.duration_s)
            if raw.picture.key_frame:
                keyframes_s.append(raw.pts_s)
            other = reader.display_size(raw.picture)
            if other != size and not faults:
                at = f"{other[0]}x{other[1]} at {raw.pts_s:.3f} s, {size[0]}x{size[1]} before"
                faults.append(("size_changes", at))
        health = reader.health
        if health.num_errors or health.lost_s:
            lost = ", ".join(f"{a:.3f} to {b:.3f} s" for a, b in health.lost_s[:5]) or "nothing"
            faults.append(("damaged", f"{health.num_errors} decoding errors; lost: {lost}"))
        seen = Seen(
            num_frames=num_frames,
            width=size[0],
            height=size[1],
            header_fps=reader.info.fps,
            end_s=health.end_s,
            longest_s=longest_s,
            keyframes_s=tuple(keyframes_s),
        )
    return seen, faults


def _differences(seen: Seen, stated: Stated) -> list[tuple[str, str]]:
    by = stated.by
    found = []
    if seen.num_frames != stated.num_frames:
        found.append(
            ("wrong_num_frames", f"decodes to {seen.num_frames}, {by} says {stated.num_frames}")
        )
    if (seen.width, seen.height) != (stated.width, stated.height):
        sizes = f"{seen.width}x{seen.height}, {by} says {stated.width}x{stated.height}"
        found.append(("wrong_size", sizes))
    # Of an MP4 with reordered pictures, FFmpeg takes the length of the last one in decoding order
    # for that of the last one shown: where the rate varies, as far off as two lengths differ.
    end_s = seen.end_s
    period_s = min(end_s / max(1, seen.num_frames), 1.0)
    tolerance_s = 0.6 * period_s + max(0.0, seen.longest_s - period_s)
    if stated.duration_s is not None and abs(end_s - stated.duration_s) > tolerance_s:
        lasts = f"lasts {end_s:.3f} s, {by} says {stated.duration_s:.3f}"
        found.append(("wrong_duration", lasts))
    elif stated.duration_s is not None:
        end_s = stated.duration_s
    # A single picture has no rate of its own. The mean and the header's differ where the rate
    # varies, and either may be what is stated.
    mean_fps = seen.num_frames / end_s if end_s > 0 else seen.header_fps
    near = (
        abs(rate - stated.fps) <= _RATE_TOLERANCE * rate for rate in (mean_fps, seen.header_fps)
    )
    if seen.num_frames > 1 and not any(near):
        found.append(("wrong_fps", f"{mean_fps:.4g} frames/s, {by} says {stated.fps:.4g}"))
    if stated.keyframes_s is not None and not _same_times(seen.keyframes_s, stated.keyframes_s):
        times = [
            ", ".join(f"{t:.3f}" for t in k[:5]) for k in (seen.keyframes_s, stated.keyframes_s)
        ]
        found.append(("wrong_keyframes", f"at {times[0]} s, {by} says {times[1]}"))
    return found


def _same_times(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return len(one) == len(other) and all(
        abs(a - b) <= _KEYFRAME_TOLERANCE_S for a, b in zip(one, other, strict=True)
    )
