"""Which windows a clip offers to training and to validation.

Time is counted in the clip's own frame periods, 1/g for g frames per second, of which it has n. A
window of T frames at f per second starts at the period k and reaches to k + (T-1)*g/f, which must
not pass the last period of its span. Held out of each clip is the window in its middle, of the
longest length that fits three times; training has what lies before it and what lies after. In the
middle, because the end of a shot often shows what the rest of it does not. Frames belong to the
span in which their timestamps lie, so that no frame is in two, also where the rate varies.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from common.errors import ConfigError
from dataloading.config import Compression, CurriculumStage, LoaderConfig, target_size
from dataloading.index import ClipTable

# Absorbs rounding in k + (T-1)*g/f, far below the half period by which decoding tolerates times.
_EPS = 1e-6
# A duration this part of a period short of a whole number still counts as that number.
_SHORT = 0.25


class WindowShape(NamedTuple):
    """Frames, pixels and frames per second of a window."""

    num_frames: int
    width: int
    height: int
    fps: float


@dataclass(frozen=True, kw_only=True)
class Windows:
    """What each clip offers in one split; n clips, s spans of each, c candidate lengths.

    Attributes:
        candidates: `int64 [c]`, ascending.
        first, end: `int64 [n, s]`, the spans in periods; a window lies in one of them whole, and
            shows no frame from outside it. Training has two, the other splits one.
        starts_in: `int64 [n, s, c]`, periods of the span at which a window may start; 0 if none.
        tokens: `int64 [n, c]`, a window's length in the pack; 0 if it fits no span.
        fps: `float64 [n]`, of the windows.
        size: `int64 [n, 2]`, width and height in pixels.
    """

    candidates: np.ndarray
    first: np.ndarray
    end: np.ndarray
    starts_in: np.ndarray
    tokens: np.ndarray
    fps: np.ndarray
    size: np.ndarray

    @cached_property
    def starts(self) -> np.ndarray:
        """`int64 [n, c]`, number of periods at which a window may start, over all spans."""
        return self.starts_in.sum(axis=1)

    def place(self, clip: int, candidate: int, index: int) -> tuple[int, int]:
        """The span and the period at which the window number `index` of `starts` begins."""
        span = 0
        while index >= self.starts_in[clip, span, candidate]:
            index -= int(self.starts_in[clip, span, candidate])
            span += 1
        return span, int(self.first[clip, span]) + index

    @cached_property
    def usable(self) -> np.ndarray:
        """`bool [n]`: clips that offer any window."""
        return np.any(self.starts > 0, axis=1)

    @property
    def mean_tokens(self) -> float:
        """Expected length of a sample of an epoch; 0 where there is none."""
        usable = self.usable
        if not usable.any():
            return 0.0
        expected = self.tokens[usable].sum(axis=1) / (self.starts[usable] > 0).sum(axis=1)
        return float(expected.mean())

    def typical_shape(self) -> WindowShape:
        """The longest length that a clip offers, the commonest size and the median frame rate.

        Each over the usable clips, of which there must be one; the smallest of equally common
        sizes.
        """
        fits = np.any(self.starts > 0, axis=0)
        sizes, counts = np.unique(self.size[self.usable], axis=0, return_counts=True)
        width, height = sizes[np.argmax(counts)].tolist()
        return WindowShape(
            num_frames=int(self.candidates[fits][-1]),
            width=width,
            height=height,
            fps=float(np.median(self.fps[self.usable])),
        )


def windows_of(
    table: ClipTable,
    config: LoaderConfig,
    compression: Compression,
    split: str,
    stage: CurriculumStage | None = None,
) -> Windows:
    """The windows of `split` (`train`, `val` or `all`) for every clip of the table, in a stage of
    `config.stages`, by default the last.

    What is held out is the same in all stages, since it follows from the lengths of all of them.
    Raises `ConfigError` naming the clips where a window would exceed the token budget.
    """
    stage = config.stages[-1] if stage is None else stage
    candidates = np.array(config.lengths, dtype=np.int64)
    in_stage = np.isin(candidates, stage.num_frames or config.num_frames)
    fps = table.fps if config.fps is None else np.full(len(table), float(config.fps))
    known = (table.duration_s > 0) & (table.fps > 0)
    ratio = np.divide(table.fps, fps, out=np.ones_like(fps), where=known)
    reach = (candidates - 1) * ratio[:, None]
    size, tokens = _sizes_and_tokens(
        table, config.resize, stage.size or config.size, compression, candidates
    )

    periods = np.where(known, np.floor(table.duration_s * table.fps + _SHORT), 0).astype(np.int64)
    whole = periods[:, None]
    held_first = np.floor((whole - 1 - reach) / 2 + _EPS).astype(np.int64)
    held_end = np.ceil(held_first + reach + 1 - _EPS).astype(np.int64)
    sides = np.minimum(held_first, whole - held_end)
    thrice = np.greater(_num_starts(sides, reach), 0)
    # The longest that fits three times: candidates ascend, so the last true column.
    longest = len(candidates) - 1 - np.argmax(thrice[:, ::-1], axis=1)
    has_val = np.any(thrice, axis=1)
    rows = np.arange(len(table))
    middle = np.where(has_val, held_first[rows, longest], periods)
    after = np.where(has_val, held_end[rows, longest], periods)
    zero = np.zeros_like(periods)

    if split == "val":
        first, end = middle[:, None], after[:, None]
        shown = has_val[:, None] & in_stage & (np.arange(len(candidates)) <= longest[:, None])
        # The longest of the stage inside what is held out: the last true column of each row.
        last = np.cumsum(shown, axis=1) == shown.sum(axis=1, keepdims=True)
        starts_in = (shown & last).astype(np.int64)[:, None]
    else:
        if split == "train":
            first, end = np.stack([zero, after], axis=1), np.stack([middle, periods], axis=1)
        else:
            first, end = zero[:, None], periods[:, None]
        starts_in = _num_starts((end - first)[:, :, None], reach[:, None]) * in_stage
    tokens = np.where(np.any(starts_in > 0, axis=1), tokens, 0)
    _check_budget(table, tokens, candidates, config.token_budget)
    return Windows(
        candidates=candidates,
        first=first,
        end=end,
        starts_in=starts_in,
        tokens=tokens,
        fps=fps,
        size=size,
    )


def _num_starts(length: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """How many k >= 0 have k + reach <= length - 1: the starts in a span of so many periods."""
    return np.maximum(0, np.floor(length - 1 - reach + _EPS).astype(np.int64) + 1)


def _sizes_and_tokens(
    table: ClipTable,
    resize: str,
    size: list[int],
    compression: Compression,
    candidates: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Size `[n, 2]` and tokens `[n, c]`, worked out once for each size of clip."""
    shapes, which = np.unique(
        np.stack([table.width, table.height], axis=1), axis=0, return_inverse=True
    )
    which = which.reshape(-1)
    sizes = [target_size(resize, size, compression, int(w), int(h)) for w, h in shapes]
    tokens = [[compression.tokens(int(t), *wh) for t in candidates] for wh in sizes]
    return np.array(sizes, dtype=np.int64)[which], np.array(tokens, dtype=np.int64)[which]


def _check_budget(
    table: ClipTable, tokens: np.ndarray, candidates: np.ndarray, budget: int
) -> None:
    over = np.argwhere(tokens > budget)
    if not len(over):
        return
    ids = table.clip_ids(over[:5, 0])
    named = ", ".join(
        f"{clip_id} ({candidates[c]} frames are {tokens[n, c]} tokens)"
        for clip_id, (n, c) in zip(ids, over[:5], strict=True)
    )
    more = f" and {len(over) - 5} more" if len(over) > 5 else ""
    raise ConfigError(
        f"token_budget {budget} is too small for {named}{more}; raise it to {tokens.max()}, or "
        "take shorter num_frames or a smaller size"
    )
