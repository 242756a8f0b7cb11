"""Each measure follows its dose, on pictures whose truth is known, at any frame rate and size.

No files but where coded sizes are asked for, no network.
"""

import math
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from common.media import VideoReader
from common.planes import luma_of
from common.tape import Spill
from curation.config import AnalysisConfig, CurateConfig
from curation.measures.base import Picture, Score
from curation.measures.blocks import blockiness
from curation.measures.camera import camera_label
from curation.measures.light import Bars, bars, common_bars
from curation.scores import SCORES, UNITS, FrameScorer
from curation.sources import SourceFile, video_id_of
from curation.stages.analyse import Analyse, Analysis
from tests.curation import footage

SIZE = (320, 180)
DIAGONAL = math.hypot(*SIZE)


def scene(seed: int = 0, width: int = 480, height: int = 320) -> np.ndarray:
    """A textured picture, larger than the plane, so that a camera can move over it."""
    random = np.random.default_rng(seed)
    parts = [
        cv2.resize(
            random.normal(0, 1, (height // step, width // step)).astype(np.float32),
            (width, height),
            interpolation=cv2.INTER_CUBIC,
        )
        for step in (24, 8, 3)
    ]
    return np.clip(128 + 30 * sum(parts, np.zeros((height, width), np.float32)), 0, 255)


def seen(picture: np.ndarray, *, x: float, y: float, zoom: float = 1.0, roll_deg: float = 0.0):
    """What a camera sees that looks at the middle plus (x right, y down), turned clockwise."""
    height, width = picture.shape
    turn = cv2.getRotationMatrix2D((width / 2 + x, height / 2 + y), roll_deg, zoom)
    turn[:, 2] += np.array([SIZE[0] / 2 - width / 2 - x, SIZE[1] / 2 - height / 2 - y])
    return cv2.warpAffine(picture, turn, SIZE, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)


def film(at: Callable[[float], np.ndarray], *, fps: float = 30, seconds: float = 3.0) -> np.ndarray:
    frames = [at(i / fps) for i in range(round(seconds * fps))]
    return np.repeat(np.clip(np.stack(frames), 0, 255).astype(np.uint8)[..., None], 3, axis=-1)


def scores(frames: np.ndarray, *, fps: float = 30) -> dict[str, Score]:
    scorer = FrameScorer(AnalysisConfig(), Spill())
    for number, frame in enumerate(frames):
        scorer.feed(Picture(round(number / fps * 1e6), frame, np.ascontiguousarray(frame[..., 0])))
    return scorer.over(0, round(len(frames) / fps * 1e6))


def value(found: dict[str, Score], name: str) -> float:
    assert found[name].valid, f"{name} is not valid"
    return found[name].value


def test_every_score_has_a_unit_and_is_measured() -> None:
    found = scores(film(lambda t: seen(scene(), x=20 * t, y=0)))
    assert {*found, "bits_per_pixel"} == set(UNITS) == set(SCORES)


# ---- light


def test_light() -> None:
    for share in (0.1, 0.3, 0.6):
        picture = seen(scene(), x=0, y=0)
        picture = np.clip(picture, 40, 215)
        picture[:, 20 : 20 + round(share * 160)] = 2
        picture[:, 220 : 220 + round(share * 80)] = 252
        found = scores(film(lambda t, p=picture: p))
        assert value(found, "crushed") == pytest.approx(share / 2, abs=0.01)
        assert value(found, "blown") == pytest.approx(share / 4, abs=0.01)
    for gain in (1.0, 0.5, 0.25):
        picture = 128 + gain * (seen(scene(), x=0, y=0) - 128)
        found = scores(film(lambda t, p=picture: p))
        wanted = picture.std() / 255
        assert value(found, "contrast") == pytest.approx(wanted, rel=0.05)


def test_bars_are_no_part_of_the_light() -> None:
    picture = np.clip(seen(scene(), x=0, y=0), 40, 215)
    plain = scores(film(lambda t: picture))
    picture[:30] = picture[-30:] = 0
    found = scores(film(lambda t: picture))
    assert value(found, "letterbox") == pytest.approx(1 / 3, abs=0.01)
    assert value(found, "crushed") == pytest.approx(0, abs=0.01)
    assert value(found, "contrast") == pytest.approx(value(plain, "contrast"), rel=0.1)


# ---- bars


@pytest.mark.parametrize("size", [(640, 360), (1920, 1080), (360, 640)])
@pytest.mark.parametrize("sides", [(0, 0, 0, 0), (0, 0.1, 0, 0.1), (0.25, 0, 0.25, 0), (0.1,) * 4])
def test_the_box_is_inside_the_bars(
    size: tuple[int, int], sides: tuple[float, ...], tmp_path: Path
) -> None:
    width, height = size
    left, top = round(sides[0] * width), round(sides[1] * height)
    right, bottom = width - round(sides[2] * width), height - round(sides[3] * height)
    frames = footage.shot(3, 12, size=size, step_px=3)
    frames = np.clip(frames, 30, 255)
    black = np.zeros_like(frames)
    black[:, top:bottom, left:right] = frames[:, top:bottom, left:right]
    analysis = _analyse(footage.write(tmp_path / "a.mp4", black, fps=20), tmp_path)
    (clip,) = analysis.clips
    assert clip.crop is not None
    x, y, w, h = clip.crop
    assert x >= left and y >= top and x + w <= right and y + h <= bottom
    assert x % 2 == y % 2 == w % 2 == h % 2 == 0
    assert x - left <= 2 and y - top <= 2
    assert right - x - w <= 2 and bottom - y - h <= 2
    share = 1 - (right - left) * (bottom - top) / (width * height)
    assert clip.scores["letterbox"].value == pytest.approx(share, abs=0.025)


def test_dark_is_no_bar() -> None:
    night = np.full((180, 320), 10, np.uint8) + np.linspace(0, 14, 320).astype(np.uint8)
    night[100:, :] = 90
    assert bars(night, 24) == Bars(left=0, top=0, right=0, bottom=0)
    assert bars(np.zeros((180, 320), np.uint8), 24) is None
    wide, black, narrow = [0, 0.2, 0, 0.2], [np.nan] * 4, [0, 0.1, 0, 0.01]
    seen = np.array([wide, black, narrow])
    assert common_bars(seen) == Bars(left=0, top=0.1, right=0, bottom=0)
    assert common_bars(np.array([[0, 0.5, 0, 0.45]])) is None
    assert common_bars(np.array([black])) is None


# ---- what changes


@pytest.mark.parametrize("fps", [10, 30, 60])
def test_stills_by_time_at_any_rate(fps: float) -> None:
    picture = scene()

    def at(t: float) -> np.ndarray:
        return seen(picture, x=60 * (min(t, 1.0) if t < 2.5 else t - 1.5), y=0)

    found = scores(film(at, fps=fps, seconds=4.0), fps=fps)
    assert value(found, "freeze_s") == pytest.approx(1.5, abs=1.5 / fps)
    assert value(found, "freeze") == pytest.approx(1.5 / 4, abs=0.5 / fps)
    assert value(found, "slideshow") == 0.0, "one still is no show"
    assert value(found, "duplicate_frames") < 0.05


def test_a_slideshow_is_several_stills() -> None:
    pictures = [seen(scene(s), x=0, y=0) for s in range(3)]
    found = scores(film(lambda t: pictures[int(t)], seconds=3.0))
    assert value(found, "slideshow") == pytest.approx(1.0)
    assert value(found, "freeze_s") == pytest.approx(1.0, abs=0.05)
    still = scores(film(lambda t: pictures[0]))
    assert (value(still, "freeze"), value(still, "slideshow")) == (1.0, 0.0)
    assert not still["duplicate_frames"].valid


@pytest.mark.parametrize(("source_fps", "share"), [(15, 0.5), (20, 1 / 3), (24, 0.2), (30, 0.0)])
def test_repeated_frames_are_counted(source_fps: int, share: float) -> None:
    picture = scene()
    frames = film(lambda t: seen(picture, x=40 * int(t * source_fps + 1e-6) / source_fps, y=0))
    found = scores(frames)
    assert value(found, "duplicate_frames") == pytest.approx(share, abs=0.03)
    assert value(found, "freeze") == 0.0


@pytest.mark.parametrize("fps", [25, 60])
@pytest.mark.parametrize("rate", [0, 2, 4, 6])
def test_flashes_by_their_rate_and_area(fps: float, rate: int) -> None:
    picture = np.clip(seen(scene(), x=0, y=0) * 0.4 + 40, 0, 255)

    def flash(height: int, width: int) -> np.ndarray:
        def at(t: float) -> np.ndarray:
            shown = picture.copy()
            if rate and (t * rate) % 1 < 0.5:
                shown[:height, :width] += 120
            return shown

        return film(at, fps=fps, seconds=3.0)

    found = scores(flash(90, 320), fps=fps)
    assert value(found, "flashes") == pytest.approx(rate, abs=0.5)
    assert value(scores(flash(90, 80), fps=fps), "flashes") == 0.0, "an eighth is too small"


def test_one_fade_is_no_flash() -> None:
    picture = seen(scene(), x=0, y=0)
    assert value(scores(film(lambda t: picture * min(1.0, t / 2))), "flashes") <= 0.5


# ---- camera


@pytest.mark.parametrize("fps", [24, 60])
@pytest.mark.parametrize(
    ("name", "rate", "label"),
    [
        ("pan", 0.08, "pan"),
        ("pan", -0.08, "pan"),
        ("tilt", 0.06, "tilt"),
        ("zoom", 0.12, "zoom"),
        ("zoom", -0.12, "zoom"),
        ("roll", 9.0, "roll"),
        ("roll", -9.0, "roll"),
        ("pan", 0.0, "static"),
    ],
)
def test_the_camera_is_measured_in_its_own_directions(
    fps: float, name: str, rate: float, label: str
) -> None:
    picture = scene(5)
    rates = {"pan": 0.0, "tilt": 0.0, "zoom": 0.0, "roll": 0.0, name: rate}

    def at(t: float) -> np.ndarray:
        return seen(
            picture,
            x=rates["pan"] * DIAGONAL * (t - 1),
            y=-rates["tilt"] * DIAGONAL * (t - 1),
            zoom=math.exp(rates["zoom"] * (t - 1)),
            roll_deg=rates["roll"] * (t - 1),
        )

    found = scores(film(at, fps=fps, seconds=2.0), fps=fps)
    got = {key: value(found, key) for key in rates}
    for key, wanted in rates.items():
        unit = 0.01 if key != "roll" else 1.0
        assert got[key] == pytest.approx(wanted, rel=0.25, abs=unit), key
    assert camera_label(got) == label
    weight = {"pan": 1, "tilt": 1, "zoom": 1 / 12**0.5, "roll": math.radians(1) / 12**0.5}[name]
    assert value(found, "camera_speed") == pytest.approx(abs(rate) * weight, rel=0.3, abs=0.003)


def test_what_moves_in_the_picture_is_not_the_camera() -> None:
    picture, actor = scene(6), scene(7)

    def at(t: float) -> np.ndarray:
        shown = seen(picture, x=30 * t, y=0)
        left = round(40 + 50 * t)
        shown[50:150, left : left + 90] = actor[50:150, 40:130]
        return shown

    found = scores(film(at, seconds=2.0))
    assert value(found, "pan") == pytest.approx(30 / DIAGONAL, rel=0.25)
    assert not scores(np.full((30, 180, 320, 3), 90, np.uint8))["pan"].valid, "nothing to see"


def jitter_of(at: Callable[[float], tuple[float, float]], *, fps: float, size=SIZE) -> float:
    picture = scene(8)

    def shown(t: float) -> np.ndarray:
        x, y = at(t)
        return seen(picture, x=x, y=y)

    return value(scores(film(shown, fps=fps, seconds=3.0), fps=fps), "jitter")


@pytest.mark.parametrize("fps", [24, 30, 60])
def test_jitter_is_what_goes_to_and_fro_fast(fps: float) -> None:
    doses = []
    for share in (0.0, 0.006, 0.012):
        swing = share * DIAGONAL * math.sqrt(2)
        doses.append(jitter_of(lambda t, s=swing: (s * math.sin(50 * t) + 15 * t, 0), fps=fps))
    assert doses[0] < 0.0005
    assert doses[1] == pytest.approx(0.006, rel=0.35)
    assert doses[2] == pytest.approx(2 * doses[1], rel=0.25)
    # What a camera is meant to do, and the sway of a hand, stay far below.
    assert jitter_of(lambda t: (60 * t * t, -20 * t), fps=fps) < 0.001
    sway = 0.02 * DIAGONAL
    slow = jitter_of(lambda t: (sway * math.sin(12 * t), sway * math.cos(9 * t)), fps=fps)
    assert slow < 0.2 * 0.02


def test_a_picture_thrown_about_at_random_is_rejected_and_a_wandering_one_is_not() -> None:
    limit = CurateConfig(input="", output="").jitter.max
    assert isinstance(limit, float)
    random = np.random.default_rng(4)
    for sigma in (0.02, 0.03):
        thrown = random.normal(0, sigma * DIAGONAL, (200, 2))
        assert jitter_of(lambda t, p=thrown: tuple(p[round(t * 25)]), fps=25) > limit
    # A hand that follows something: noise of speed, so that most of it is slow.
    speed = random.normal(0, 0.004 * DIAGONAL, (200, 2))
    path = 0.4 * np.cumsum(np.apply_along_axis(np.convolve, 0, speed, np.ones(5)), axis=0)
    assert jitter_of(lambda t: tuple(path[round(t * 25)]), fps=25) < 0.5 * limit


def test_jitter_is_unknown_where_it_cannot_be_seen() -> None:
    still = seen(scene(8), x=0, y=0)
    assert not scores(film(lambda t: still, seconds=0.6))["jitter"].valid
    assert not scores(film(lambda t: still, fps=12, seconds=3.0), fps=12)["jitter"].valid
    assert scores(film(lambda t: still, fps=24, seconds=1.0), fps=24)["jitter"].valid


# ---- traces of the codec


def test_blockiness_follows_the_blocks_wherever_they_lie() -> None:
    picture = np.clip(scene(9, 640, 360), 0, 255)

    def blocked(strength: float, shift: int = 0) -> float:
        blocks = cv2.resize(picture, (80, 45), interpolation=cv2.INTER_AREA)
        flat = cv2.resize(blocks, (640, 360), interpolation=cv2.INTER_NEAREST)
        mixed = (strength * flat + (1 - strength) * picture).astype(np.uint8)
        found = blockiness(mixed[shift:, shift:])
        assert found is not None
        return found

    doses = [blocked(strength) for strength in (0.0, 0.3, 0.6, 0.9)]
    assert doses == sorted(doses) and doses[0] < 1.15 and doses[-1] > 2
    assert blocked(0.6, shift=3) == pytest.approx(blocked(0.6), rel=0.15)
    barred = picture.astype(np.uint8)
    barred[:72] = 0
    assert (blockiness(barred) or 9) < 1.2, "one edge on a border is no block"
    deep = (picture * 4).astype(np.uint16)
    assert blockiness(deep) == pytest.approx(doses[0], rel=0.05)
    assert blockiness(np.full((360, 640), 9, np.uint8)) is None
    assert blockiness(np.zeros((16, 16), np.uint8)) is None


def _analyse(path: Path, scratch: Path, threads: int = 1) -> Analysis:
    config = CurateConfig(input="", output="", analysis=AnalysisConfig(threads=threads))
    item = SourceFile(source=path.name, path=str(path), content_id=video_id_of(path))
    (analysis,) = Analyse(config, scratch).process(item)
    assert isinstance(analysis, Analysis)
    return analysis


def test_bits_per_pixel_are_those_of_the_clip(tmp_path: Path) -> None:
    frames = np.concatenate([footage.shot(s, 40, size=(256, 144)) for s in (1, 2)])
    random = np.random.default_rng(0)
    frames[40:] = np.clip(frames[40:] + random.normal(0, 20, frames[40:].shape), 0, 255)
    path = footage.write(tmp_path / "a.mp4", frames, options={"crf": "20", "g": "20", "bf": "2"})
    first, second = _analyse(path, tmp_path).clips
    assert second.scores["bits_per_pixel"].value > 3 * first.scores["bits_per_pixel"].value
    coded = sum(
        clip.scores["bits_per_pixel"].value * clip.num_frames * 256 * 144 / 8
        for clip in (first, second)
    )
    assert coded == pytest.approx(path.stat().st_size, rel=0.05)


def test_luma_is_as_it_was_coded(tmp_path: Path) -> None:
    frames = footage.shot(4, 4, size=(256, 144))
    for pix_fmt, kind in (("yuv420p", np.uint8), ("yuv444p10le", np.uint16)):
        path = footage.write(tmp_path / f"{pix_fmt}.mp4", frames, pix_fmt=pix_fmt)
        with VideoReader(path) as reader:
            picture = next(iter(reader.frames())).picture
            luma = luma_of(picture)
            assert luma is not None
            assert (luma.shape, luma.dtype) == ((144, 256), kind)
            grey = cv2.cvtColor(frames[0], cv2.COLOR_RGB2GRAY).astype(np.float32)
            levels = luma / (1 if kind == np.uint8 else 4)
            # Limited range: 16 is black, 235 is white.
            assert np.abs(levels - (16 + grey * 219 / 255)).mean() < 4


def test_scores_do_not_depend_on_threads(tmp_path: Path) -> None:
    path = footage.write(tmp_path / "a.mp4", footage.shot(6, 60, size=(640, 360), step_px=3))
    before = cv2.getNumThreads()
    found = []
    try:
        for threads in (1, 2, 5):
            cv2.setNumThreads(threads)
            found.append(_analyse(path, tmp_path, threads))
    finally:
        cv2.setNumThreads(before)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("size", [(320, 180), (1280, 720)])
def test_scores_of_one_scene_at_two_sizes(size: tuple[int, int], tmp_path: Path) -> None:
    picture = scene(11, 960, 640)

    def at(t: float) -> np.ndarray:
        return cv2.resize(seen(picture, x=25 * t, y=5 * math.sin(50 * t)), size)

    path = footage.write(tmp_path / "a.mp4", film(at, fps=30), fps=30)
    (clip,) = _analyse(path, tmp_path).clips
    got = {name: score.value for name, score in clip.scores.items()}
    assert got["pan"] == pytest.approx(25 / DIAGONAL, rel=0.2)
    assert got["jitter"] == pytest.approx(5 / math.sqrt(2) / DIAGONAL, rel=0.3)
    assert got["contrast"] == pytest.approx(at(0.5).std() / 255, rel=0.15)
    assert got["letterbox"] == got["freeze"] == got["flashes"] == 0.0
