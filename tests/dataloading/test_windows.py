"""Windows by time: variable frame rate, seeks, crops, damage; the cache's bounds."""

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from av.video.frame import VideoFrame

from common.encoders import Encoding
from common.errors import MediaError
from common.media import VideoWriter
from dataloading.windows import FrameCache, Frames, Told, WindowSpec, decode_span, decode_window
from tests.dataloading.folder import frame_number, pictures

SIZE = (64, 48)


def encoded(path: Path, ticks: list[int], *, rate: int = 24, gop: int = 250) -> bytes:
    """A video whose picture number i is shown from tick `ticks[i]` of 1/rate s."""
    frames = pictures(len(ticks), *SIZE)
    with VideoWriter(
        path / "clip.mp4",
        width=SIZE[0],
        height=SIZE[1],
        rate=Fraction(rate),
        time_base=Fraction(1, rate),
        encoding=Encoding(crf=1, preset="ultrafast", gop=gop),
    ) as writer:
        for i, rgb in enumerate(frames):
            following = ticks[i + 1] if i + 1 < len(ticks) else ticks[i] + 1
            picture = VideoFrame.from_ndarray(rgb, "rgb24").reformat(format="yuv420p")
            writer.write(picture, pts=ticks[i], duration=following - ticks[i])
    return (path / "clip.mp4").read_bytes()


def spec(times_s: np.ndarray, span: tuple[float, float], *, rate: int = 24, size=SIZE):
    return WindowSpec(
        times_s=times_s,
        span_s=((span[0] - 0.5) / rate, (span[1] - 0.5) / rate),
        period_s=1 / rate,
        source_size=SIZE,
        size=size,
    )


@pytest.mark.parametrize("gop", [4, 250])
@pytest.mark.parametrize("every", [2, 3, 7])
def test_variable_rate_is_read_by_time(tmp_path: Path, gop: int, every: int) -> None:
    ticks = [t for t in range(48) if t % every != every - 1]
    video = encoded(tmp_path, ticks, gop=gop)
    end = ticks[-1] + 1
    for span in [(0, end), (0, 30), (20, end)]:
        for start in range(span[0], span[1] - 9):
            for fps in (24.0, 10.0):
                times_s = start / 24 + np.arange(9) / fps
                times_s = times_s[times_s <= (span[1] - 1) / 24 + 1e-9]
                wanted = spec(times_s, span)
                shown = decode_window(video, wanted).at(times_s, 1 / 24)
                whole = decode_span(video, wanted).at(times_s, 1 / 24)
                assert np.array_equal(shown, whole)
                inside = [t for t in ticks if span[0] <= t < span[1]]
                expected = [
                    ticks.index(max([t for t in inside if t <= s * 24 + 0.499] or inside[:1]))
                    for s in times_s
                ]
                assert [frame_number(f) for f in shown] == expected


def test_cover_and_crop_at_the_centre(tmp_path: Path) -> None:
    video = encoded(tmp_path, [0, 1])
    # 64x48 covers 16x48 at scale 1 and loses 24 columns at each side, the tinted corner with them.
    tall = decode_window(video, spec(np.array([0.0]), (0, 2), size=(16, 48)))
    assert tall.rgb.shape == (1, 48, 16, 3)
    full = decode_window(video, spec(np.array([0.0]), (0, 2)))
    assert np.array_equal(tall.rgb, full.rgb[:, :, 24:40])
    # Twice as wide as high: scaled to 128x96 and cut to the middle 64 rows.
    wide = decode_window(video, spec(np.array([0.0]), (0, 2), size=(128, 64)))
    assert wide.rgb.shape == (1, 64, 128, 3)


def test_frames_that_were_lost_are_not_replaced(tmp_path: Path) -> None:
    frames = Frames(
        rgb=np.zeros((3, 2, 2, 3), np.uint8),
        pts_s=np.array([0.0, 0.1, 0.5]),
        end_s=np.array([0.1, 0.2, 0.6]),  # from 0.2 to 0.5 something was damaged
    )
    assert len(frames.at(np.array([0.0, 0.1, 0.5]), 0.1)) == 3
    for lost in (0.2, 0.3, 0.4, 0.6, 0.7):
        with pytest.raises(MediaError, match="missing_frames"):
            frames.at(np.array([0.1, lost]), 0.1)
    video = encoded(tmp_path, list(range(20)))
    late = spec(np.array([0.5, 0.9, 1.3]), (0, 40))
    with pytest.raises(MediaError, match="no frame at 0.900 s"):
        decode_window(video, late).at(late.times_s, 1 / 24)


def test_damaged_bytes_give_frames_or_a_named_error(tmp_path: Path) -> None:
    video = encoded(tmp_path, list(range(30)), gop=8)
    wanted = spec(0.5 + np.arange(9) / 24, (0, 30))
    rnd = random.Random(0)
    outcomes = Counter()
    for trial in range(120):
        damaged = bytearray(video)
        for _ in range(rnd.choice([1, 3, 20])):
            damaged[rnd.randrange(len(damaged))] = rnd.randrange(256)
        if trial % 3 == 0:
            damaged = damaged[: rnd.randrange(len(damaged))]
        for decode in (decode_window, decode_span):
            try:
                shown = decode(bytes(damaged), wanted).at(wanted.times_s, 1 / 24)
                assert shown.shape == (9, 48, 64, 3)
                outcomes["frames"] += 1
            except MediaError as error:
                outcomes[error.reason] += 1
    assert outcomes["frames"] > 20
    assert outcomes["missing_frames"] > 20


def test_another_shape_than_the_index_says_is_refused(tmp_path: Path) -> None:
    video = encoded(tmp_path, [0, 1])
    wrong = WindowSpec(
        times_s=np.array([0.0]), span_s=(0, 1), period_s=1 / 24, source_size=(48, 64), size=SIZE
    )
    with pytest.raises(MediaError, match="the video is 64x48, its index says 48x64"):
        decode_window(video, wrong)


def entry(num_bytes: int) -> tuple[Frames, Told]:
    frames = Frames(rgb=np.zeros(num_bytes, np.uint8), pts_s=np.zeros(1), end_s=np.zeros(1))
    return frames, Told("")


def test_the_cache_keeps_what_fits_and_no_more() -> None:
    cache = FrameCache(100)
    assert cache.get(1, 60, lambda: entry(60)) is not None
    assert cache.get(2, 50, lambda: entry(50)) is None
    assert cache.get(3, 40, lambda: entry(40)) is not None
    assert cache.used_bytes == 100
    assert cache.get(1, 60, lambda: pytest.fail("decoded twice")) is not None


def test_the_cache_counts_what_clips_take_and_not_what_was_expected() -> None:
    cache = FrameCache(100)
    assert cache.get(1, 40, lambda: entry(70)) is not None
    assert cache.used_bytes == 70
    # Given, since it is decoded now, but not kept.
    assert cache.get(2, 20, lambda: entry(31)) is not None
    assert cache.used_bytes == 70
    assert cache.get(2, 20, lambda: entry(10)) is not None
    assert cache.used_bytes == 80


def test_a_failed_decode_is_not_kept() -> None:
    cache = FrameCache(100)

    def fail() -> tuple[Frames, Told]:
        raise MediaError("empty", "nothing")

    for _ in range(3):
        with pytest.raises(MediaError, match="nothing"):
            cache.get(1, 80, fail)
        assert cache.used_bytes == 0
    assert cache.get(2, 80, lambda: entry(80)) is not None


def test_one_thread_decodes_and_the_others_wait() -> None:
    cache, calls, gate = FrameCache(100), [], threading.Event()

    def slow() -> tuple[Frames, Told]:
        calls.append(1)
        gate.wait(5)
        return entry(10)

    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(cache.get, 1, 10, slow) for _ in range(4)]
        gate.set()
        assert len({id(r.result()) for r in results}) == 1
    assert len(calls) == 1
