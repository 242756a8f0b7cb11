"""From a clip's bytes in a shard to the frames of a window, and the clips kept in memory.

A window shows at time t the last frame that began by t plus half a frame period. It is the same
whether the frames come from memory or from a decode of the window alone. (Where bytes are damaged
and still decode, the wrong pixels can depend on where decoding began.)
"""

import json
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from common.errors import MediaError
from common.media import RawFrame, VideoReader
from common.ranges import Ranges, ReadAt
from dataloading.index import ClipLocation

_TAR_BLOCK_BYTES = 512
VIDEO_SUFFIX = ".mp4"
_GAP_BYTES = 4096
"""Between two files of a tar that are read together, at most."""
# Rounding of timestamps that went through seconds.
_CLOCK_S = 5e-7
# Under one half, so that a time midway between two frames always means the earlier.
_TOLERANCE = 0.499


@dataclass(frozen=True, kw_only=True)
class WindowSpec:
    """Which frames of a clip are wanted, and how.

    Attributes:
        times_s: `float64 [T]`, ascending.
        span_s: frames with timestamps before the first or from the second on are never shown.
        period_s: the clip's own frame period.
        source_size, size: width and height in the shard, and wanted.
    """

    times_s: np.ndarray
    span_s: tuple[float, float]
    period_s: float
    source_size: tuple[int, int]
    size: tuple[int, int]

    @property
    def begin_s(self) -> float:
        """The span's first instant inside the clip."""
        return max(0.0, self.span_s[0])

    @property
    def span_bytes(self) -> int:
        """Memory for all frames of the span, at the wanted size."""
        num_frames = round((self.span_s[1] - self.span_s[0]) / self.period_s)
        return num_frames * self.size[0] * self.size[1] * 3


@dataclass(frozen=True, kw_only=True)
class Frames:
    """Resized frames of one clip: `uint8 [N, H, W, 3]`, each shown from `pts_s` to `end_s`."""

    rgb: np.ndarray
    pts_s: np.ndarray
    end_s: np.ndarray

    def at(self, times_s: np.ndarray, period_s: float) -> np.ndarray:
        """The frames shown at these times, copied. Raises `MediaError` where one was lost."""
        index = np.searchsorted(self.pts_s, times_s + _TOLERANCE * period_s, side="right") - 1
        index = np.maximum(index, 0)
        # A frame that is there is shown for half a period more at least; one that was lost leaves
        # its predecessor ending too early, or its successor beginning too late.
        lost = (times_s > self.end_s[index] - 0.25 * period_s) | (
            self.pts_s[index] - times_s > 2 * period_s
        )
        if lost.any():
            raise MediaError("missing_frames", f"no frame at {times_s[lost][0]:.3f} s of the clip")
        return self.rgb[index]


@dataclass(frozen=True)
class Told:
    """What a clip's JSON says of it."""

    caption: str
    actions: list[list[float]] | None = None
    """One for all of the clip, or one for each of its frames."""
    start_s: float | None = None
    """Of an encoded window: where in its clip it begins; None of a clip."""
    fps: float | None = None
    """Of an encoded window; 0 of a single frame."""


def read_members(clip: ClipLocation, ranges: Ranges, action_dim: int = 0) -> tuple[bytes, Told]:
    """The clip's video file, and its caption and actions (`action_dim` numbers each; 0: none are
    read), by one read of both where they lie together.

    Raises:
        MediaError: `missing_member` where the shard holds something else there; `no_caption`;
            `bad_actions` where there are some, and of another form.
        DataError: where the shard itself cannot be read, which no other clip would mend.
    """
    video_end = clip.video_offset + clip.video_bytes
    begin = clip.video_offset - _TAR_BLOCK_BYTES
    end = clip.json_offset + clip.json_bytes
    together = 0 <= clip.json_offset - video_end <= _GAP_BYTES
    both = ranges.read(clip.shard, end - begin, begin) if together else b""

    def read(num_bytes: int, offset: int) -> bytes:
        if together:
            return both[offset - begin : offset - begin + num_bytes]
        return ranges.read(clip.shard, num_bytes, offset)

    video = _member(read, clip, clip.suffix, clip.video_offset, clip.video_bytes)
    text = _member(read, clip, ".json", clip.json_offset, clip.json_bytes)
    try:
        about = json.loads(text)
        caption, actions = about.get("caption"), about.get("actions") if action_dim else None
    except (ValueError, AttributeError) as error:
        raise MediaError("bad_json", f"{clip.clip_id}.json is no JSON object: {error}") from None
    if not isinstance(caption, str):
        raise MediaError("no_caption", f"{clip.clip_id}.json has no text under 'caption'")
    if actions is not None and not _are_actions(actions, action_dim):
        raise MediaError(
            "bad_actions",
            f"{clip.clip_id}.json has under 'actions' no list of lists of {action_dim} numbers",
        )
    if clip.suffix == VIDEO_SUFFIX:
        return video, Told(caption, actions)
    return video, Told(caption, start_s=about.get("start_s"), fps=about.get("fps"))


def _are_actions(actions: Any, dim: int) -> bool:
    return (
        isinstance(actions, list)
        and len(actions) > 0
        and all(isinstance(row, list) and len(row) == dim for row in actions)
        and all(
            isinstance(x, int | float) and not isinstance(x, bool) and isfinite(x)
            for row in actions
            for x in row
        )
    )


def _member(read: ReadAt, clip: ClipLocation, suffix: str, offset: int, num_bytes: int) -> bytes:
    """A file of the tar together with its header, which must name it."""
    name = clip.clip_id + suffix
    raw = read(_TAR_BLOCK_BYTES + num_bytes, offset - _TAR_BLOCK_BYTES)
    header, content = raw[:_TAR_BLOCK_BYTES], raw[_TAR_BLOCK_BYTES:]
    # Names over 100 bytes are cut in this header; the full one lies in an extended header before.
    if header[:100].rstrip(b"\0") != name.encode()[:100] or len(content) != num_bytes:
        raise MediaError("missing_member", f"{clip.shard.name} has no {name} at byte {offset}")
    return content


def decode_span(video: bytes, spec: WindowSpec) -> Frames:
    """All frames of the span."""
    with _opened(video, spec) as reader:
        rows = [
            _row(reader, raw, spec)
            for raw in reader.frames(start_s=spec.begin_s, end_s=spec.span_s[1])
        ]
    return _stacked(rows)


def decode_window(video: bytes, spec: WindowSpec) -> Frames:
    """The frames that the window shows, decoded from the key frame before it."""
    wanted = spec.times_s + _TOLERANCE * spec.period_s
    rows: list[tuple[float, float, np.ndarray]] = []
    with _opened(video, spec) as reader:
        held: RawFrame | None = None
        for raw in reader.frames(
            start_s=float(spec.times_s[0]), end_s=spec.span_s[1], from_shown=True
        ):
            if raw.pts_s < spec.begin_s - _CLOCK_S:
                continue
            if held is not None and _shown(wanted, held.pts_s, raw.pts_s, first=not rows):
                rows.append(_row(reader, held, spec))
            held = raw
            if raw.pts_s > wanted[-1]:
                break
        if held is not None and _shown(wanted, held.pts_s, float("inf"), first=not rows):
            rows.append(_row(reader, held, spec))
    return _stacked(rows)


def _shown(wanted: np.ndarray, begin_s: float, end_s: float, *, first: bool) -> bool:
    """Whether a frame is wanted; the first also stands in for times just before it."""
    begin, end = np.searchsorted(wanted, [begin_s, end_s], side="left")
    return bool(end > (0 if first else begin))


def _opened(video: bytes, spec: WindowSpec) -> VideoReader:
    reader = VideoReader(video)
    size = (reader.info.width, reader.info.height)
    if size != spec.source_size:
        reader.__exit__(None, None, None)
        raise MediaError(
            "wrong_shape",
            f"the video is {size[0]}x{size[1]}, its index says "
            f"{spec.source_size[0]}x{spec.source_size[1]}",
        )
    return reader


def _row(reader: VideoReader, raw: RawFrame, spec: WindowSpec) -> tuple[float, float, np.ndarray]:
    """Scaled to cover the wanted size, then cut at the centre."""
    width, height = spec.size
    source_w, source_h = spec.source_size
    scale = max(width / source_w, height / source_h)
    cover = max(width, round(source_w * scale)), max(height, round(source_h * scale))
    left, top = (cover[0] - width) // 2, (cover[1] - height) // 2
    rgb = reader.rgb(raw.picture, size=cover)[top : top + height, left : left + width]
    return raw.pts_s, raw.pts_s + raw.duration_s, rgb


def _stacked(rows: list[tuple[float, float, np.ndarray]]) -> Frames:
    if not rows:
        raise MediaError("missing_frames", "no frame of the window could be decoded")
    pts_s, end_s, rgb = zip(*rows, strict=True)
    return Frames(rgb=np.stack(rgb), pts_s=np.array(pts_s), end_s=np.array(end_s))


class FrameCache:
    """Decoded clips in memory, up to a number of bytes; each is decoded once, by one thread.

    What was let in stays. An epoch visits every clip once, so evicting the least recently used
    would lose each clip just before it comes up again; keeping a fixed part serves that part
    every epoch.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._entries: dict[Hashable, Future[tuple[Frames, Told]]] = {}
        self._lock = threading.Lock()

    def get(
        self, span: Hashable, num_bytes: int, decode: Callable[[], tuple[Frames, Told]]
    ) -> tuple[Frames, Told] | None:
        """Frames of a clip's span and what is told of it, decoded if new; none where there is no
        room for it.

        `num_bytes` is what they are expected to take. If they take more, as where frames lie denser
        than the clip's rate says, and there is no room for that, they are given but not kept.

        Raises what `decode` raises; the clip is then not kept.
        """
        with self._lock:
            entry = self._entries.get(span)
            if entry is None:
                if self.used_bytes + num_bytes > self.capacity_bytes:
                    return None
                self.used_bytes += num_bytes
            mine = entry is None
            future = self._entries.setdefault(span, Future()) if entry is None else entry
        if mine:
            try:
                decoded = decode()
            except BaseException as error:
                with self._lock:
                    self._forget(span, num_bytes)
                future.set_exception(error)
            else:
                taken = decoded[0].rgb.nbytes
                with self._lock:
                    self.used_bytes += taken - num_bytes
                    if self.used_bytes > self.capacity_bytes:
                        self._forget(span, taken)
                future.set_result(decoded)
        return future.result()

    def _forget(self, span: Hashable, num_bytes: int) -> None:
        self.used_bytes -= num_bytes
        del self._entries[span]
