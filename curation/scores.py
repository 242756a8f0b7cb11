"""Scores of a clip from its reduced frames, all from the one analysis decode.

All are independent of codec, frame rate and resolution as far as the reduced picture allows, but
for `blockiness` and `bits_per_pixel`, which tell of the coding. Lengths are fractions of the
picture's diagonal, rates are per second, shares are 0 to 1. `curation.definitions` says what each
of them is.
"""

import hashlib
import json
import math
from array import array
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from common.tape import Spill
from curation.config import AnalysisConfig
from curation.definitions import DEFINITIONS
from curation.measures.base import Measure, Picture, Schedule, Score, as_score
from curation.measures.blocks import Blocks
from curation.measures.flashes import Flashes
from curation.measures.focus import Focus
from curation.measures.jitter import Jitter
from curation.measures.light import Crop, Light
from curation.measures.motion import Motion
from curation.measures.overlay import Overlay
from curation.measures.stillness import Stillness
from curation.measures.text import why_absent

__all__ = [
    "BITS",
    "LIGHT",
    "MEASURES",
    "SCORES",
    "UNITS",
    "Crop",
    "FrameScorer",
    "Score",
    "Scores",
    "measure_hashes",
    "measure_params",
    "not_measured",
]

UNITS = {name: definition.unit for name, definition in DEFINITIONS.items()}
"""Every score and its unit."""
SCORES = tuple(UNITS)
BITS = "bits"
"""The measure of coded bits, which looks at packets, not at pictures."""
_KINDS: dict[str, type[Measure]] = {
    kind.name: kind for kind in (Focus, Light, Motion, Stillness, Flashes, Jitter, Blocks, Overlay)
}
LIGHT = Light.name
MEASURES = (*_KINDS, BITS)
_PLACE = {name: place for place, name in enumerate(SCORES)}
_NEED_DETECTOR = ("text_overlay", "text_moving", "text_time")


class Scores(Mapping[str, Score]):
    """All scores of one clip, in eight bytes each: a long video has many clips. What is not among
    those given is not valid."""

    __slots__ = ("_values",)

    def __init__(self, scores: Mapping[str, Score]) -> None:
        found = (scores.get(name) for name in SCORES)
        self._values = array("d", (s.value if s and s.valid else math.nan for s in found))

    def __getitem__(self, name: str) -> Score:
        value = self._values[_PLACE[name]]
        return Score(0.0, False) if math.isnan(value) else Score(value, True)

    def __iter__(self) -> Iterator[str]:
        return iter(SCORES)

    def __len__(self) -> int:
        return len(SCORES)


class FrameScorer:
    """Measures frames while they pass; keeps numbers only, never pictures.

    Args:
        spill: where they wait.
        only: names of measures; the others are left out.
    """

    def __init__(
        self, config: AnalysisConfig, spill: Spill, only: Collection[str] = MEASURES
    ) -> None:
        self._measures = [kind(config, spill) for name, kind in _KINDS.items() if name in only]
        self._schedule = Schedule(config.samples_per_s)

    def feed(self, picture: Picture) -> bool:
        """Takes the next frame; says whether it was sampled."""
        sampled = self._schedule.due(picture.pts_us)
        for measure in self._measures:
            if sampled or measure.every_frame:
                measure.feed(picture, sampled)
        return sampled

    def interrupt(self) -> None:
        """Footage is missing here: nothing is measured across the hole."""
        for measure in self._measures:
            measure.interrupt()

    def over(self, start_us: int, end_us: int) -> dict[str, Score]:
        """The scores of a clip, those of its measures and but for `bits_per_pixel`."""
        found: dict[str, float | None] = {}
        for measure in self._measures:
            found |= measure.over(start_us, end_us)
        return {name: as_score(value) for name, value in found.items()}

    def crop(self, start_us: int, end_us: int, width: int, height: int) -> Crop | None:
        """See `Light.crop`; None where light is not measured."""
        for measure in self._measures:
            if isinstance(measure, Light):
                return measure.crop(start_us, end_us, width, height)
        return None


def measure_params(config: AnalysisConfig) -> dict[str, dict[str, Any]]:
    """Measure to everything that changes its scores, as plain values."""
    found = {name: {**k.params(config), "version": k.version} for name, k in _KINDS.items()}
    return {**found, BITS: {"version": 1}}


def measure_hashes(config: AnalysisConfig) -> dict[str, str]:
    """Measure to a name of its parameters: equal hash, equal scores of equal clips."""
    return {
        name: hashlib.blake2b(
            json.dumps([name, params], sort_keys=True).encode(), digest_size=6
        ).hexdigest()
        for name, params in measure_params(config).items()
    }


def not_measured(config: AnalysisConfig) -> dict[str, str]:
    """Scores that this machine cannot give, and why."""
    why = why_absent() if config.text else None
    return {} if why is None else dict.fromkeys(_NEED_DETECTOR, why)
