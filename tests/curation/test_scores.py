"""Scores and shots: each score follows its dose and little else. No files, no network."""

import copy
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from common.tape import Spill
from curation.config import AnalysisConfig, CurateConfig
from curation.decide import decide
from curation.decisions import BlurConfig, MotionConfig
from curation.definitions import DEFINITIONS, markdown_table
from curation.measures.base import Picture
from curation.measures.focus import Focus, sharpness
from curation.measures.motion import Motion
from curation.scores import MEASURES, SCORES, FrameScorer, Score, Scores, measure_hashes
from curation.stages.analyse import ScoredClip, reduced_size
from tests.curation import footage


def _texture(seed: int = 0, width: int = 320, height: int = 180) -> np.ndarray:
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 6, width // 6)).astype(np.float32)
    return np.clip(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), 0, 255)


def _sharp(picture: np.ndarray) -> float:
    grey = picture.astype(np.uint8)
    value = sharpness(grey, Picture(0, grey, grey).steepness)
    assert value is not None
    return value


def test_sharpness_falls_with_blur_and_ignores_contrast() -> None:
    picture = _texture()
    doses = [_sharp(picture)]
    doses += [_sharp(cv2.GaussianBlur(picture, (0, 0), s)) for s in (1.0, 2.0, 4.0, 8.0)]
    assert doses == sorted(doses, reverse=True)
    assert doses[0] > 4 * doses[-1]
    # A third of the contrast is a ninth of the Laplacian's variance, but the same focus.
    assert _sharp(100 + picture / 3) == pytest.approx(doses[0], rel=0.1)


def test_sharpness_of_nothing_is_not_a_number() -> None:
    grey = np.full((180, 320), 7, np.uint8)
    assert sharpness(grey, Picture(0, grey, grey).steepness) is None


def _picture(pts_us: float, frame: np.ndarray) -> Picture:
    bgr = np.ascontiguousarray(frame[..., ::-1])
    return Picture(round(pts_us), bgr, cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY))


def _scores(frames: np.ndarray, *, fps: float, step: int = 1) -> dict[str, Score]:
    scorer = FrameScorer(AnalysisConfig(), Spill())
    for number, frame in enumerate(frames[::step]):
        scorer.feed(_picture(number * step / fps * 1e6, frame))
    return scorer.over(0, round(len(frames) / fps * 1e6) + 1)


def test_motion_is_per_second_and_per_diagonal() -> None:
    speeds = []
    for step_px in (0.5, 1.0, 2.0):
        frames = footage.shot(3, 60, size=(320, 180), step_px=step_px)
        speeds.append(_scores(frames, fps=60)["motion"].value)
    assert speeds == sorted(speeds)
    # 1 pixel a frame at 60 frames a second over a diagonal of 367 pixels.
    assert speeds[1] == pytest.approx(60 / 367, rel=0.25)
    # The same movement seen at half the frame rate is the same movement.
    frames = footage.shot(3, 60, size=(320, 180), step_px=1.0)
    half = _scores(frames, fps=60, step=2)["motion"].value
    assert half == pytest.approx(speeds[1], rel=0.15)


def test_still_is_zero_but_unknown_is_invalid() -> None:
    still = np.repeat(footage.shot(4, 1, size=(320, 180)), 30, axis=0)
    assert _scores(still, fps=30)["motion"] == Score(value=0.0, valid=True)
    alone = _scores(still[:1], fps=30)
    assert not alone["motion"].valid
    assert alone["luma"].valid


def test_motion_is_not_measured_across_a_cut_or_a_hole() -> None:
    scorer = FrameScorer(AnalysisConfig(), Spill())
    still = [np.repeat(footage.shot(s, 1, size=(320, 180)), 8, axis=0) for s in (5, 6)]
    for number, frame in enumerate(np.concatenate(still)):
        scorer.feed(_picture(number / 30 * 1e6, frame))
    cut_us = round(8 / 30 * 1e6)
    assert scorer.over(0, cut_us)["motion"].value == 0.0
    holed = FrameScorer(AnalysisConfig(), Spill())
    holed.feed(_picture(0, still[0][0]))
    holed.interrupt()
    holed.feed(_picture(200_000, still[1][0]))
    assert not holed.over(0, 300_000)["motion"].valid


def test_luma_is_the_mean_brightness() -> None:
    frames = np.full((10, 180, 320, 3), 77, np.uint8)
    assert _scores(frames, fps=10)["luma"].value == pytest.approx(77, abs=0.5)


def _clip(seconds: float = 3.0, **values: float | None) -> ScoredClip:
    usual = {"blur": 5.0, "motion": 0.05, "luma": 120.0} | values
    scores = {
        name: Score(value=usual.get(name) or 0.0, valid=usual.get(name) is not None)
        for name in SCORES
    }
    end_us = round(seconds * 1e6)
    return ScoredClip(
        clip_id="a", start_us=0, end_us=end_us, num_frames=9, scores=scores, crop=None
    )


def test_each_threshold_has_its_reason() -> None:
    config = CurateConfig(
        input="",
        output="",
        blur=BlurConfig(min=1.0, max=9.0),
        motion=MotionConfig(min=0.001, max=1.0),
    )
    reason = decide(config, []).reject_reason
    assert reason(_clip()) is None
    assert reason(_clip(0.5)) == "short"
    assert reason(_clip(blur=0.4)) == "blur"
    assert reason(_clip(blur=9.5)) == "oversharp"
    assert reason(_clip(motion=0.0)) == "low_motion"
    assert reason(_clip(motion=1.1)) == "high_motion"
    assert reason(_clip(luma=5.0)) == "dark"
    assert reason(_clip(luma=250.0)) == "bright"
    assert reason(_clip(blur=None, motion=None, luma=None)) is None


def test_the_plane_has_one_area() -> None:
    for width, height in ((3840, 2160), (176, 144), (404, 720), (853, 360)):
        across, down = reduced_size(width, height, 320)
        assert across * down == pytest.approx(320 * 180, rel=0.01)
        assert across / down == pytest.approx(width / height, rel=0.01)


def test_a_clip_takes_the_samples_that_lie_wholly_in_it() -> None:
    random = np.random.default_rng(0)
    rows = [(n * 250_000, float(value)) for n, value in enumerate(random.random(400))]
    focus, motion = Focus(AnalysisConfig(), Spill()), Motion(AnalysisConfig(), Spill())
    for at, value in rows:
        focus._tape.append(at, value)
        motion._tape.append(at, at + 70_000, value, *[np.nan] * 5)
    for start, end in [(0, 1_000_000), (250_000, 260_000), (1, 99_000_001), (10**9, 2 * 10**9)]:
        inside = [row for row in rows if start <= row[0] < end]
        whole = [row for row in inside if row[0] + 70_000 < end]
        for found, chosen in ((focus, inside), (motion, whole)):
            value = next(iter(found.over(start, end).values()))
            wanted = float(np.median([v for _, v in chosen])) if chosen else None
            assert value == wanted


def test_a_score_alone_is_the_score_among_all() -> None:
    frames = footage.shot(3, 40, size=(320, 180), step_px=2.0)
    together = _scores(frames, fps=20)
    alone: dict[str, Score] = {}
    for name in MEASURES:
        scorer = FrameScorer(AnalysisConfig(), Spill(), only=[name])
        for number, frame in enumerate(frames):
            scorer.feed(_picture(number * 50_000, frame))
        found = scorer.over(0, 2_000_001)
        assert not alone.keys() & found.keys()
        alone |= found
    assert alone == together
    for name, score in together.items():
        assert DEFINITIONS[name].measure in MEASURES
        assert isinstance(score, Score)


def test_only_a_measure_whose_settings_change_has_another_name() -> None:
    usual = measure_hashes(AnalysisConfig())
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"jitter_window_s": 0.4}, {"jitter"}),
        ({"still_db": -50.0}, {"stillness"}),
        ({"flash_step": 0.2}, {"flashes"}),
        ({"bar_level": 30}, {"light"}),
        ({"motion_gap_s": 0.1}, {"motion"}),
        ({"samples_per_s": 5.0}, {"focus", "light", "motion", "blocks"}),
        ({"threads": 3}, set()),
    ]
    for change, stale in cases:
        now = measure_hashes(AnalysisConfig(**change))
        assert {name for name in usual if usual[name] != now[name]} == stale


def test_the_table_of_scores_is_the_one_in_the_docs() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "scores.md"
    assert markdown_table() in page.read_text(encoding="utf-8")
    assert {d.measure for d in DEFINITIONS.values()} == set(MEASURES)
    assert all(d.unit and d.meaning and d.source for d in DEFINITIONS.values())


def test_scores_of_a_clip_are_those_given_and_the_rest_is_not_valid() -> None:
    given = {"blur": Score(0.0, True), "motion": Score(0.1234567, True), "luma": Score(7.0, False)}
    kept = Scores(given)
    assert list(kept) == list(SCORES) == list(dict(kept))
    assert (kept["blur"], kept["motion"]) == (given["blur"], given["motion"])
    assert all(kept[name] == Score(0.0, False) for name in SCORES[2:])
    assert Scores(kept) == kept == copy.copy(kept)  # as it is sent to another process
    with pytest.raises(KeyError):
        kept["taste"]
