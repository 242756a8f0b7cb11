"""Where one shot ends and the next begins, and the clips that this gives."""

from curation.shots.finder import ShotFinder, shot_finder
from curation.shots.frame_times import FrameTimes, longest_held_us
from curation.shots.spans import split_spans

__all__ = ["FrameTimes", "ShotFinder", "longest_held_us", "shot_finder", "split_spans"]
