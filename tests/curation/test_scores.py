"""Scores and shots: each score follows its dose and little else. No files, no network."""

import time

import cv2
import numpy as np
import pytest

from curation.config import BlurConfig, CurateConfig, MotionConfig
from curation.decide import decide
from curation.scores import SCORES, FrameScorer, Pair, Score, Still, gradient, sharpness
from curation.stages.analyse import ScoredClip, reduced_size
from tests.curation import footage


def _texture(seed: int = 0, width: int = 320, height: int = 180) -> np.ndarray:
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 6, width // 6)).astype(np.float32)
    return np.clip(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), 0, 255)


def _sharp(picture: np.ndarray) -> float:
    grey = picture.astype(np.uint8)
    value = sharpness(grey, gradient(grey))
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
    assert sharpness(grey, gradient(grey)) is None


def _grey(frame: np.ndarray) -> np.ndarray:
    return cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)


def _scores(frames: np.ndarray, *, fps: float, step: int = 1) -> dict[str, Score]:
    scorer = FrameScorer(samples_per_s=4)
    for number, frame in enumerate(frames[::step]):
        scorer.feed(round(number * step / fps * 1e6), _grey(frame))
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
    scorer = FrameScorer(samples_per_s=4)
    still = [np.repeat(footage.shot(s, 1, size=(320, 180)), 8, axis=0) for s in (5, 6)]
    for number, frame in enumerate(np.concatenate(still)):
        scorer.feed(round(number / 30 * 1e6), _grey(frame))
    cut_us = round(8 / 30 * 1e6)
    assert scorer.over(0, cut_us)["motion"].value == 0.0
    holed = FrameScorer(samples_per_s=4)
    holed.feed(0, _grey(still[0][0]))
    holed.interrupt()
    holed.feed(200_000, _grey(still[1][0]))
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


def _still(at: int, sharp: float, luma: float) -> Still:
    return Still(at, sharp, luma, np.ones(64, np.float32), None, None)


def test_a_clip_takes_the_samples_that_lie_wholly_in_it() -> None:
    scorer = FrameScorer(4.0)
    random = np.random.default_rng(0)
    stills = [(n * 250_000, float(random.random()), float(random.random())) for n in range(400)]
    scorer._size = (320, 180)
    scorer._stills = [_still(at, sharp, luma) for at, sharp, luma in stills]
    scorer._pairs = [Pair(at, at + 40_000, value, None) for at, value, _ in stills]
    for start, end in [(0, 1_000_000), (250_000, 260_000), (1, 99_000_001), (10**9, 2 * 10**9)]:
        inside = [still for still in stills if start <= still[0] < end]
        speeds = [value for at, value, _ in inside if at + 40_000 < end]
        found = scorer.over(start, end)
        for name, values in (
            ("blur", [still[1] for still in inside]),
            ("luma", [still[2] for still in inside]),
            ("motion", speeds),
        ):
            assert found[name].valid == bool(values)
            if values:
                assert found[name].value == pytest.approx(np.median(values), abs=1e-6)


def test_the_scores_of_a_long_video_are_found_fast() -> None:
    scorer = FrameScorer(4.0)
    scorer._size = (320, 180)
    for n in range(24 * 3600 * 25):
        scorer._log._pts.append(n * 40_000)
        scorer._log._change.append(0.1)
        scorer._log._light += b"0123456789abcdef"
        scorer._log._path_pts.append(n * 40_000)
        scorer._log._path.extend((0.0, 0.0))
    scorer._stills = [_still(n * 250_000, 1.0, 100.0) for n in range(24 * 3600 * 4)]
    began = time.perf_counter()
    for n in range(100):
        scorer.over(n * 5_000_000, (n + 1) * 5_000_000)
    assert time.perf_counter() - began < 1
