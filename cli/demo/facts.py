"""What a first run found: the facts that its page tells, and the checks that judge them."""

from dataclasses import dataclass
from pathlib import Path

from common.pages import LossPoint, ValPoint, figure


@dataclass(frozen=True, kw_only=True)
class DemoClip:
    """A curated clip; `label` is its short name on the page, times are within the source."""

    label: str
    source: str
    start_s: float
    end_s: float
    kept: bool
    reject_reason: str | None
    thumbnail: Path | None
    caption: str
    scores: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What was measured about whether the model learned its captions.

    `distances[i][j]` is from the video generated for caption `row_labels[i]` to the clip
    `column_labels[j]`; smaller is nearer. `matched` of `total` generated videos are nearest to the
    clip of their own caption, `shuffled_matched` when captions are exchanged between clips.
    A row's own clip is the column of the same label, or else the column of the same place.
    """

    first_val_loss: float
    last_val_loss: float
    matched: int
    total: int
    shuffled_matched: int
    distances: list[list[float]]
    row_labels: list[str]
    column_labels: list[str]
    note: str


@dataclass(frozen=True, kw_only=True)
class TokenizerFacts:
    """`compression` says from what to what; `how` says how the tokenizer came to be."""

    quality: dict[str, tuple[float, float]]
    """PSNR in dB and SSIM over the held-out windows, by what reconstructed them; the tokenizer
    itself comes first."""
    compression: str
    how: str


@dataclass(frozen=True, kw_only=True)
class DemoExample:
    """Videos of one caption; `psnr_db` compares `reconstructed` with `real`."""

    caption: str
    clip_label: str
    real: Path
    reconstructed: Path
    generated: Path
    shuffled: Path | None
    psnr_db: float


@dataclass(frozen=True, kw_only=True)
class DemoPage:
    """A whole first run. Empty lists and None leave a sentence on the page, not a hole."""

    title: str
    created: str
    wall_s: dict[str, float]
    settings: dict[str, dict[str, object]]
    clips: list[DemoClip]
    loss: list[LossPoint]
    val: list[ValPoint]
    learning: Learning | None
    tokenizer: TokenizerFacts | None
    examples: list[DemoExample]
    machine: dict[str, str]
    version: str


@dataclass(frozen=True, kw_only=True)
class Check:
    """Something the run had to show, and a sentence with the numbers."""

    passed: bool
    sentence: str


def checks(learning: Learning) -> list[Check]:
    """What the run must show: a validation loss that halves, and captions that matter.

    Captions matter when at least 3 of 4 generated videos are nearest to the clip of their own
    caption, and fewer than half are when captions are exchanged between clips.
    """
    first, last = learning.first_val_loss, learning.last_val_loss
    share = f", {last / first:.2f} times as much" if first > 0 else ""
    guessed = learning.total / max(1, len(learning.column_labels))
    return [
        Check(
            passed=last <= first / 2,
            sentence=(
                f"The denoising error on held-out windows went from {figure(first)} to "
                f"{figure(last)}{share}; at most half is asked."
            ),
        ),
        Check(
            passed=4 * learning.matched >= 3 * learning.total
            and 2 * learning.shuffled_matched < learning.total,
            sentence=(
                f"{learning.matched} of {learning.total} generated videos are nearest to the clip "
                f"of their own caption, where 3 of 4 are asked; {learning.shuffled_matched} with "
                f"exchanged captions, {guessed:.1f} expected from guessing."
            ),
        ),
    ]
