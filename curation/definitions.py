"""What every score means. `docs/scores.md` is this as a table; a test keeps the two the same."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One score."""

    measure: str
    """The measure that gives it; scores of one measure are measured again together."""
    unit: str
    meaning: str
    invalid: str
    """When there is no valid value; empty: never, where there is a frame."""
    source: str
    """Where the definition comes from."""


_NO_PAIR = "no two pictures 65 ms apart inside the clip"
_NO_CAMERA = "as motion, or most pictures agree on no movement"
_NO_SAMPLE = "no sampled picture inside the clip"
_SHORT_OVERLAY = "under 0.7 s"
_SIMILARITY = "similarity fitted to the flow, reweighted least squares (Holland and Welsch 1977)"

DEFINITIONS = {
    "blur": Definition(
        measure="focus",
        unit="squared frequency of edges; low is blurred",
        meaning="variance of the Laplacian over mean squared gradient",
        invalid="no edges to judge by",
        source="Pech-Pacheco et al. 2000, normalised by gradient energy",
    ),
    "motion": Definition(
        measure="motion",
        unit="diagonals/s",
        meaning="mean length of optical flow between pictures at least 65 ms apart",
        invalid=_NO_PAIR,
        source="DIS flow, Kroeger et al. 2016",
    ),
    "luma": Definition(
        measure="light",
        unit="0 to 255",
        meaning="mean brightness",
        invalid=_NO_SAMPLE,
        source="ITU-R BT.709 luma, full range",
    ),
    "contrast": Definition(
        measure="light",
        unit="RMS, share of the range",
        meaning="standard deviation of brightness, bars left out",
        invalid=_NO_SAMPLE,
        source="Peli 1990, eq. 2",
    ),
    "crushed": Definition(
        measure="light",
        unit="share of the picture",
        meaning="pixels below 8 of 255, bars left out",
        invalid=_NO_SAMPLE,
        source="share of a histogram",
    ),
    "blown": Definition(
        measure="light",
        unit="share of the picture",
        meaning="pixels from 248 of 255 on, bars left out",
        invalid=_NO_SAMPLE,
        source="share of a histogram",
    ),
    "letterbox": Definition(
        measure="light",
        unit="share of the picture",
        meaning="black lines at the edges, in every picture of the clip",
        invalid="black altogether, or bars over 90 % of a side",
        source="FFmpeg cropdetect (limit 24), and flat",
    ),
    "freeze_s": Definition(
        measure="stillness",
        unit="s",
        meaning="longest time without a change",
        invalid="one frame",
        source="FFmpeg freezedetect, -60 dB",
    ),
    "freeze": Definition(
        measure="stillness",
        unit="share of the time",
        meaning="in stills of half a second or longer",
        invalid="one frame",
        source="FFmpeg freezedetect, -60 dB",
    ),
    "slideshow": Definition(
        measure="stillness",
        unit="share of the time",
        meaning="in stills, where there are several; else 0",
        invalid="one frame",
        source="from freeze",
    ),
    "duplicate_frames": Definition(
        measure="stillness",
        unit="share of the frames",
        meaning="frames that repeat the one before, stills apart",
        invalid="under nine frames outside of stills",
        source="as FFmpeg mpdecimate, at -60 dB",
    ),
    "flashes": Definition(
        measure="flashes",
        unit="1/s",
        meaning="most general flashes in any second",
        invalid="one frame",
        source="WCAG 2.2, general flash; ITU-R BT.1702",
    ),
    "jitter": Definition(
        measure="jitter",
        unit="diagonals",
        meaning="median distance of the picture's path from its smooth course, above some 5 Hz",
        invalid="under 0.8 s, under some 17 frames/s, or footage missing",
        source="Savitzky and Golay 1964; cf. Liu et al. 2013, Bundled camera paths",
    ),
    "pan": Definition(
        measure="motion",
        unit="diagonals/s, to the right",
        meaning="of the camera",
        invalid=_NO_CAMERA,
        source=_SIMILARITY,
    ),
    "tilt": Definition(
        measure="motion",
        unit="diagonals/s, up",
        meaning="of the camera",
        invalid=_NO_CAMERA,
        source=_SIMILARITY,
    ),
    "zoom": Definition(
        measure="motion",
        unit="1/s, in",
        meaning="growth of the picture",
        invalid=_NO_CAMERA,
        source=_SIMILARITY,
    ),
    "roll": Definition(
        measure="motion",
        unit="degrees/s, clockwise",
        meaning="turn of the camera",
        invalid=_NO_CAMERA,
        source=_SIMILARITY,
    ),
    "camera_speed": Definition(
        measure="motion",
        unit="diagonals/s",
        meaning="root mean square speed of the picture that the camera causes",
        invalid=_NO_CAMERA,
        source=_SIMILARITY,
    ),
    "blockiness": Definition(
        measure="blocks",
        unit="steps at block borders over steps inside",
        meaning="borders of 8 x 8 blocks in the coded picture; 1 is none",
        invalid="no brightness of its own in the pixel format, or too small",
        source="Wang, Sheikh and Bovik 2002, as a ratio",
    ),
    "bits_per_pixel": Definition(
        measure="bits",
        unit="bits",
        meaning="coded bits over coded pixels",
        invalid="the container does not tell the times of its packets",
        source="sizes of the packets",
    ),
    "text_overlay": Definition(
        measure="overlay",
        unit="share of the picture",
        meaning="under text that stands there for three quarters of the time",
        invalid=f"{_SHORT_OVERLAY}, or no text detector",
        source="PP-OCR's detector (Liao et al. 2020) where strokes stay",
    ),
    "text_moving": Definition(
        measure="overlay",
        unit="share of the picture",
        meaning="under text that stands there, as text_overlay, while the picture beside it moves",
        invalid=f"{_SHORT_OVERLAY}, no text detector, or what is beside it stands still",
        source="as text_overlay",
    ),
    "text_time": Definition(
        measure="overlay",
        unit="share of the time",
        meaning="in which text covers 1 % or more",
        invalid=f"{_SHORT_OVERLAY}, or no text detector",
        source="as text_overlay",
    ),
    "logo": Definition(
        measure="overlay",
        unit="share of the picture",
        meaning="strokes that stay throughout in the corners while the picture moves",
        invalid=f"{_SHORT_OVERLAY}, or the picture itself stands still",
        source="gradients that stay; cf. Dekel et al. 2017, on the consistency of watermarks",
    ),
}
"""By the score's name; this is also the order of columns."""


def markdown_table() -> str:
    """All scores, as `docs/scores.md` shows them."""
    head = ("score", "unit", "what it is", "not valid where", "definition from")
    rows = [head, ("---",) * len(head)]
    rows += [
        (f"`{name}`", d.unit, d.meaning, d.invalid or "never", d.source)
        for name, d in DEFINITIONS.items()
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
