"""Text and logos that lie over a picture, against pictures whose truth is known.

Tests of the detector are skipped where onnxruntime or rapidocr is not installed. One process, no
network.
"""

import math

import cv2
import numpy as np
import pytest

from common.tape import Spill
from curation.config import AnalysisConfig
from curation.measures import overlay, text
from curation.measures.base import Picture, Values
from curation.measures.overlay import Overlay

needs_detector = pytest.mark.skipif(
    text.why_absent() is not None, reason=f"no text detector: {text.why_absent()}"
)
SIZE = (320, 180)
FPS = 25


def _backdrop(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    parts = [
        cv2.resize(
            random.normal(0, 1, (400 // step, 700 // step, 3)).astype(np.float32),
            (700, 400),
            interpolation=cv2.INTER_CUBIC,
        )
        for step in (40, 12, 4)
    ]
    return np.clip(120 + 25 * sum(parts, np.zeros((400, 700, 3), np.float32)), 0, 255)


def _measured(draw, *, seed: int = 0, seconds: float = 3.0, speed_px: float = 40.0) -> Values:
    """The overlay's scores of a camera that moves over a backdrop, `draw(picture, t)` on top."""
    backdrop = _backdrop(seed)
    measure = Overlay(AnalysisConfig(), Spill())
    for number in range(round(seconds * FPS)):
        t = number / FPS
        shift = np.array([[1, 0, -10 - speed_px * t], [0, 1, -20 - 10 * math.sin(t)]])
        bgr = cv2.warpAffine(backdrop, shift, SIZE, flags=cv2.INTER_LINEAR)
        bgr = np.ascontiguousarray(bgr.astype(np.uint8))
        draw(bgr, t)
        grey = cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY)
        measure.feed(Picture(round(t * 1e6), bgr, grey), False)
    return measure.over(0, round(seconds * 1e6))


def _write(bgr: np.ndarray, words: str, at: tuple[int, int], size: float) -> None:
    cv2.putText(bgr, words, at, cv2.FONT_HERSHEY_SIMPLEX, size, (255, 255, 255), 2, cv2.LINE_AA)


def _nothing(bgr: np.ndarray, t: float) -> None:
    pass


@needs_detector
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_text_that_stays_is_found_by_its_area(seed: int) -> None:
    def headline(bgr: np.ndarray, t: float) -> None:
        _write(bgr, "BREAKING", (10, 35), 1.0)

    def with_banner(bgr: np.ndarray, t: float) -> None:
        headline(bgr, t)
        cv2.rectangle(bgr, (0, 128), (320, 164), (40, 40, 40), -1)
        _write(bgr, "SUBSCRIBE NOW TODAY", (2, 154), 0.85)

    shares = []
    for draw in (_nothing, headline, with_banner):
        share = _measured(draw, seed=seed)["text_overlay"]
        assert share is not None
        shares.append(share)
    assert shares[0] == 0.0
    assert 0.03 < shares[1] < 0.12
    assert shares[2] > 0.12 and shares[2] > 1.8 * shares[1]


@needs_detector
def test_text_in_the_scene_is_no_overlay() -> None:
    def sign(bgr: np.ndarray, t: float) -> None:
        _write(bgr, "RESTAURANT", (100 - round(40 * t), 80), 1.0)

    found = _measured(sign)
    assert found["text_overlay"] == 0.0


@needs_detector
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_small_text_over_a_moving_picture_is_told_from_that_of_a_still_one(seed: int) -> None:
    def ticker(bgr: np.ndarray, t: float) -> None:
        _write(bgr, "LIVE from the arena", (20, 165), 0.7)

    over = _measured(ticker, seed=seed)
    share = over["text_overlay"]
    assert share is not None and 0.03 < share < 0.12
    assert over["text_moving"] == share
    assert _measured(_nothing, seed=seed)["text_moving"] == 0.0
    chart = _backdrop(seed)[:180, :320].astype(np.uint8)

    def still(bgr: np.ndarray, t: float) -> None:
        bgr[:] = chart
        ticker(bgr, t)

    page = _measured(still, seed=seed)
    assert page["text_moving"] is None
    assert page["text_overlay"] is not None and page["text_overlay"] > 0.03


@needs_detector
def test_subtitles_come_and_go() -> None:
    def subtitle(bgr: np.ndarray, t: float) -> None:
        if t < 2:
            _write(bgr, "and then he said to me", (10, 165), 0.7)

    found = _measured(subtitle, seconds=4.0)
    assert found["text_time"] is not None
    assert 0.2 < found["text_time"] < 0.8


def test_most_pictures_never_reach_the_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting:
        looks = 0

        def find(self, bgr: np.ndarray) -> np.ndarray:
            self.looks += 1
            return np.zeros(bgr.shape[:2], np.uint8)

    finder = Counting()
    monkeypatch.setattr(overlay, "detector", lambda: finder)
    for seed in range(4):
        assert _measured(_nothing, seed=seed)["text_overlay"] == 0.0
    assert finder.looks == 0

    def logo(bgr: np.ndarray, t: float) -> None:
        _write(bgr, "LOGO TV", (215, 30), 0.8)

    _measured(logo, seconds=4.0)
    assert 1 <= finder.looks <= 6, "of 100 pictures"


def test_a_logo_is_what_stays_in_a_corner_while_the_picture_moves() -> None:
    def logo(bgr: np.ndarray, t: float) -> None:
        cv2.circle(bgr, (290, 25), 14, (255, 255, 255), 3)
        cv2.circle(bgr, (290, 25), 6, (0, 0, 0), 3)

    def centre(bgr: np.ndarray, t: float) -> None:
        cv2.circle(bgr, (160, 90), 14, (255, 255, 255), 3)

    assert _measured(_nothing)["logo"] == 0.0
    assert _measured(centre)["logo"] == 0.0
    marked = _measured(logo)["logo"]
    assert marked is not None and 0.004 < marked < 0.06
    picture = _backdrop(0)[:180, :320].astype(np.uint8)

    def still(bgr: np.ndarray, t: float) -> None:
        bgr[:] = picture

    assert _measured(still)["logo"] is None


def test_without_a_detector_text_is_not_valid_and_the_logo_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overlay, "detector", lambda: None)
    found = _measured(_nothing)
    assert found["text_overlay"] is None and found["text_time"] is None
    assert found["logo"] == 0.0


def test_a_missing_package_is_named_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from curation.scores import not_measured

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    why = text.why_absent()
    assert why is not None and "onnxruntime is not installed: pip install" in why
    names = ("text_overlay", "text_moving", "text_time")
    assert not_measured(AnalysisConfig()) == dict.fromkeys(names, why)
    assert not_measured(AnalysisConfig(text=False)) == {}


def test_a_short_clip_has_no_overlay() -> None:
    assert set(_measured(_nothing, seconds=0.6).values()) == {None}
