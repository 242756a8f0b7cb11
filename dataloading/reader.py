"""One sample of the plan to its frames and caption."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common import rng
from common.errors import MediaError
from common.ranges import Ranges
from dataloading.index import ClipLocation, ClipTable
from dataloading.sources import Sample
from dataloading.split import Windows
from dataloading.threads import StorageWatch
from dataloading.windows import (
    FrameCache,
    Frames,
    Told,
    WindowSpec,
    decode_span,
    decode_window,
    read_members,
)


@dataclass(frozen=True, kw_only=True)
class Window:
    """What was read; `fps` is 0 for a single frame."""

    clip_id: str
    frames: Tensor | None
    """`uint8 [T, H, W, 3]`; none where latents were read."""
    caption: str
    start_s: float
    fps: float
    actions: Tensor | None = None
    """`float32 [T, a]`, one for each frame; None where the clip has none."""
    latents: Tensor | None = None
    """`float32 [C, t, h, w]`"""
    text: Tensor | None = None
    """`float32 [L, d]`"""


class WindowReader:
    """Reads samples, from many threads at once; a pure function of the sample and the data."""

    def __init__(
        self,
        table: ClipTable,
        stages: list[Windows],
        *,
        seed: int,
        cache_bytes: int,
        ranges: Ranges,
        watch: StorageWatch,
        action_dim: int = 0,
    ) -> None:
        """`stages`: the windows in each stage of the curriculum. `watch` hears of every read.
        `action_dim`: of the actions that are read, 0 for none."""
        self._action_dim = action_dim
        self._table = table
        self._stages = stages
        self._seed = seed
        self._watch = watch
        self._ranges = ranges
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
            frames, told = kept or self._decoded(clip, spec, whole_span=False)
            rgb = frames.at(spec.times_s, spec.period_s)
            return self._window(sample, clip, spec, rgb, told)
        except MediaError as error:
            raise MediaError(error.reason, f"clip {clip.clip_id}: {error.detail}") from error

    def num_bytes(self, sample: Sample) -> int:
        """What `fetch` reads of it, by the index."""
        return int(self._table.num_bytes[sample.ordinal])

    def fetch(self, sample: Sample) -> tuple[bytes, Told]:
        """The clip's file and what is told of it. Raises as `read_members`."""
        clip = self._table.location(sample.ordinal)
        try:
            return self._members(clip)
        except MediaError as error:
            raise MediaError(error.reason, f"clip {clip.clip_id}: {error.detail}") from error

    def decode(self, sample: Sample, video: bytes, told: Told) -> Window:
        """The window out of what `fetch` gave. Raises as `read`."""
        clip = self._table.location(sample.ordinal)
        spec = self._spec(sample, clip.clip_id)
        try:
            rgb = decode_window(video, spec).at(spec.times_s, spec.period_s)
            return self._window(sample, clip, spec, rgb, told)
        except MediaError as error:
            raise MediaError(error.reason, f"clip {clip.clip_id}: {error.detail}") from error

    def _window(
        self, sample: Sample, clip: ClipLocation, spec: WindowSpec, rgb: np.ndarray, told: Told
    ) -> Window:
        actions = told.actions
        if actions is not None and len(actions) not in (1, clip.num_frames):
            raise MediaError(
                "bad_actions",
                f"{len(actions)} actions for {clip.num_frames} frames: give one for all of "
                "the clip, or one for each frame",
            )
        fps = float(self._stages[sample.stage].fps[sample.ordinal])
        return Window(
            clip_id=clip.clip_id,
            frames=torch.from_numpy(rgb),
            caption=told.caption,
            start_s=float(spec.times_s[0]),
            fps=fps if len(spec.times_s) > 1 else 0.0,
            actions=None if actions is None else _actions_at(actions, spec),
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

    def _members(self, clip: ClipLocation) -> tuple[bytes, Told]:
        with self._watch.reading(clip.shard):
            return read_members(clip, self._ranges, self._action_dim)

    def _decoded(
        self, clip: ClipLocation, spec: WindowSpec, *, whole_span: bool
    ) -> tuple[Frames, Told]:
        video, told = self._members(clip)
        return (decode_span if whole_span else decode_window)(video, spec), told


def _actions_at(actions: list[list[float]], spec: WindowSpec) -> Tensor:
    """Those of the frames that a window shows, `float32 [T, a]`."""
    frame = np.rint(spec.times_s / spec.period_s).astype(np.int64).clip(0, len(actions) - 1)
    return torch.tensor(actions, dtype=torch.float32)[torch.from_numpy(frame)]
