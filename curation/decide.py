"""Which clips are kept, from the stored scores alone."""

from curation.config import CurateConfig
from curation.shots import longest_held_us
from curation.stages.analyse import ScoredClip


def thresholds(config: CurateConfig) -> dict[str, dict[str, float | None]]:
    """The bounds by score, as they stand in `summary.json`."""
    return {
        "blur": {"min": config.blur.min, "max": None},
        "motion": {"min": config.motion.min, "max": config.motion.max},
        "luma": {"min": config.dark.min, "max": config.bright.max},
    }


def reject_reason(clip: ScoredClip, config: CurateConfig) -> str | None:
    """Why a clip is rejected, or None; the first reason in the order below.

    A score that is not valid rejects nothing.
    """
    length_us = clip.end_us - clip.start_us
    if clip.num_frames == 1 and length_us > longest_held_us(round(config.max_clip_s * 1e6)):
        return "sparse"
    if length_us < round(config.min_clip_s * 1e6):
        return "short"
    reasons = {
        "luma": ("dark", "bright"),
        "blur": ("blur", "blur"),
        "motion": ("low_motion", "high_motion"),
    }
    bounds = thresholds(config)
    for name, (too_low, too_high) in reasons.items():
        score = clip.scores[name]
        low, high = bounds[name]["min"], bounds[name]["max"]
        if score.valid and low is not None and score.value < low:
            return too_low
        if score.valid and high is not None and score.value > high:
            return too_high
    return None
