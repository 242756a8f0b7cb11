"""One sample of the plan to its frames and caption."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common import rng
from common.errors import MediaError
from dataloading.index import ClipLocation, ClipTable
from dataloading.sources import Sample
from dataloading.split import Windows
from dataloading.threads import StorageWatch
from dataloading.windows import (
    FrameCache,
    Frames,
    WindowSpec,
    decode_span,
    decode_window,
    read_members,
)


@dataclass(frozen=True, kw_only=True)
class Window:
    """What was read: `frames` is `uint8 [T, H, W, 3]`; `fps` is 0 for a single frame."""

    clip_id: str
    frames: Tensor
    caption: str
    start_s: float
    fps: float


class WindowReader:
    """Reads samples, from many threads at once; a pure function of the sample and the data."""

    def __init__(
        self,
        table: ClipTable,
        stages: list[Windows],
        *,
        seed: int,
        cache_bytes: int,
        watch: StorageWatch,
    ) -> None:
        """`stages`: the windows in each stage of the curriculum. `watch` hears of every read."""
        self._table = table
        self._stages = stages
        self._seed = seed
        self._watch = watch
        self._cache = FrameCache(cache_bytes)

    def read(self, sample: Sample) -> Window:
        """Raises `MediaError` naming the clip where its window cannot be read."""
        clip = self._table.location(sample.ordinal)
        spec = self._spec(sample, clip.clip_id)
        try:
            kept = self._cache.get(
                (sample.ordinal, spec.span_s, spec.size),
                spec.span_bytes,
                lambda: self._decoded(clip, spec, whole_span=True),
            )
            frames, caption = kept or self._decoded(clip, spec, whole_span=False)
            rgb = frames.at(spec.times_s, spec.period_s)
        except MediaError as error:
            raise MediaError(error.reason, f"clip {clip.clip_id}: {error.detail}") from error
        return self._window(sample, clip.clip_id, spec, rgb, caption)

    def num_bytes(self, sample: Sample) -> int:
        """What `fetch` reads of it, by the index."""
        return int(self._table.num_bytes[sample.ordinal])

    def fetch(self, sample: Sample) -> tuple[bytes, str]:
        """The clip's file and its caption. Raises as `read_members`."""
        clip = self._table.location(sample.ordinal)
        try:
            return self._members(clip)
        except MediaError as error:
            raise MediaError(error.reason, f"clip {clip.clip_id}: {error.detail}") from error

    def decode(self, sample: Sample, video: bytes, caption: str) -> Window:
        """The window out of what `fetch` gave. Raises as `read`."""
        clip = self._table.location(sample.ordinal)
        spec = self._spec(sample, clip.clip_id)
        try:
            rgb = decode_window(video, spec).at(spec.times_s, spec.period_s)
        except MediaError as error:
            raise MediaError(error.reason, f"clip {clip.clip_id}: {error.detail}") from error
        return self._window(sample, clip.clip_id, spec, rgb, caption)

    def _window(
        self, sample: Sample, clip_id: str, spec: WindowSpec, rgb: np.ndarray, caption: str
    ) -> Window:
        fps = float(self._stages[sample.stage].fps[sample.ordinal])
        return Window(
            clip_id=clip_id,
            frames=torch.from_numpy(rgb),
            caption=caption,
            start_s=float(spec.times_s[0]),
            fps=fps if len(spec.times_s) > 1 else 0.0,
        )

    def _spec(self, sample: Sample, clip_id: str) -> WindowSpec:
        windows, n = self._stages[sample.stage], sample.ordinal
        period_s = 1.0 / float(self._table.fps[n])
        key = rng.key(self._seed, "start", step=sample.epoch, sample_id=clip_id)
        index = rng.integer(key, int(windows.starts[n, sample.candidate]))
        span, start = windows.place(n, sample.candidate, index)
        steps = np.arange(int(windows.candidates[sample.candidate]))
        return WindowSpec(
            times_s=start * period_s + steps / float(windows.fps[n]),
            # Half a period early, so that rounded timestamps stay in the span they belong to.
            span_s=(
                (float(windows.first[n, span]) - 0.5) * period_s,
                (float(windows.end[n, span]) - 0.5) * period_s,
            ),
            period_s=period_s,
            source_size=(int(self._table.width[n]), int(self._table.height[n])),
            size=(int(windows.size[n, 0]), int(windows.size[n, 1])),
        )

    def _members(self, clip: ClipLocation) -> tuple[bytes, str]:
        with self._watch.reading(clip.shard):
            return read_members(clip)

    def _decoded(
        self, clip: ClipLocation, spec: WindowSpec, *, whole_span: bool
    ) -> tuple[Frames, str]:
        video, caption = self._members(clip)
        return (decode_span if whole_span else decode_window)(video, spec), caption
