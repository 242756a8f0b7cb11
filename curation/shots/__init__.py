"""Where one shot ends and the next begins, and the clips that this gives."""

from curation.shots.finder import ShotFinder, shot_finder
from curation.shots.spans import longest_held_us, split_spans

__all__ = ["ShotFinder", "longest_held_us", "shot_finder", "split_spans"]
