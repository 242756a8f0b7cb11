"""Reading and writing video files. One process, no network, no GPU; footage is made here."""

import hashlib
import multiprocessing
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from common.errors import MediaError
from common.media import VideoReader, probe, read_at, read_frames, write_video
from tests.curation import footage


def _corner(seed: int = 0, num_frames: int = 20) -> np.ndarray:
    """Frames whose four quarters have four brightnesses, so that a turn or mirror shows."""
    frames = np.zeros((num_frames, 96, 160, 3), np.uint8)
    frames[:, :48, :80], frames[:, :48, 80:] = 40, 90
    frames[:, 48:, :80], frames[:, 48:, 80:] = 150, 220
    return frames


def _quarters(rgb: np.ndarray) -> list[int]:
    """Mean brightness of the quarters, read line by line, as ranks."""
    h, w = rgb.shape[0] // 2, rgb.shape[1] // 2
    means = [q.mean() for q in (rgb[:h, :w], rgb[:h, w:], rgb[h:, :w], rgb[h:, w:])]
    return np.argsort(np.argsort(means)).tolist()


@pytest.mark.parametrize(
    ("rotation_deg", "quarters", "size"),
    [
        (0, [0, 1, 2, 3], (160, 96)),
        # A quarter turn counter-clockwise brings the right column to the top.
        (90, [1, 3, 0, 2], (96, 160)),
        (180, [3, 2, 1, 0], (160, 96)),
        (270, [2, 0, 3, 1], (96, 160)),
    ],
)
def test_rotation_is_applied(
    tmp_path: Path, rotation_deg: int, quarters: list[int], size: tuple[int, int]
) -> None:
    path = footage.write(tmp_path / "a.mp4", _corner(), rotation_deg=rotation_deg)
    info = probe(path)
    assert (info.width, info.height) == size
    assert info.rotation_deg == rotation_deg
    frame = next(read_frames(path))
    assert frame.rgb.shape == (size[1], size[0], 3)
    assert _quarters(frame.rgb) == quarters
    with VideoReader(path) as reader:
        raw = next(reader.frames())
        yuv = reader.yuv(raw.picture, size=size)
        assert (yuv.width, yuv.height) == size
        assert _quarters(yuv.to_ndarray(format="rgb24")) == quarters


def test_non_square_pixels_are_made_square(tmp_path: Path) -> None:
    wide = footage.write(tmp_path / "w.mp4", _corner(), pixel_aspect=Fraction(4, 3))
    tall = footage.write(tmp_path / "t.mp4", _corner(), pixel_aspect=Fraction(3, 4))
    assert (probe(wide).width, probe(wide).height) == (213, 96)
    assert (probe(tall).width, probe(tall).height) == (160, 128)
    assert next(read_frames(wide)).rgb.shape == (96, 213, 3)
    assert next(read_frames(wide, size=(64, 32))).rgb.shape == (32, 64, 3)


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "name", "size"),
    [
        ("libx264", "yuv420p", "a.mp4", (160, 96)),
        ("libx264", "yuv444p", "a.mp4", (159, 95)),
        ("libx265", "yuv420p10le", "a.mkv", (160, 96)),
        ("libvpx-vp9", "yuv420p", "a.webm", (160, 96)),
        ("mpeg4", "yuv420p", "a.avi", (160, 96)),
        ("libx264", "yuv420p", "a.avi", (160, 96)),
        ("ffv1", "yuv422p10le", "a.mkv", (161, 96)),
    ],
)
def test_codecs_depths_and_odd_sizes(
    tmp_path: Path, codec: str, pix_fmt: str, name: str, size: tuple[int, int]
) -> None:
    frames = footage.shot(1, 20, size=size)
    options = {
        "libx265": {"x265-params": "log-level=none"},
        "mpeg4": {"b": "4000000", "bf": "2"},
        "libx264": {"crf": "18", "g": "10", "bf": "3"},
    }.get(codec)
    path = footage.write(
        tmp_path / name, frames, fps=25, codec=codec, pix_fmt=pix_fmt, options=options or {}
    )
    info = probe(path)
    assert (info.width, info.height) == size
    assert info.duration_s == pytest.approx(0.8, abs=0.06)
    assert info.fps == pytest.approx(25, rel=0.03)
    read = list(read_frames(path))
    assert [f.pts_s for f in read] == pytest.approx(np.arange(20) / 25, abs=1e-3)
    error = np.abs(read[10].rgb.astype(int) - frames[10]).mean()
    assert error < 12, "colours or pictures are off"


def _vfr(tmp_path: Path, first_tick: int = 0) -> tuple[Path, list[float]]:
    """Distances of 33, 100 and 50 ms in turn."""
    steps = [33, 100, 50] * 10
    ticks = [first_tick + t for t in np.cumsum([0, *steps[:-1]]).tolist()]
    frames = footage.shot(2, len(ticks))
    path = footage.write(
        tmp_path / "vfr.mkv", frames, ticks=ticks, time_base=Fraction(1, 1000), options={"bf": "0"}
    )
    return path, [(t - first_tick) / 1000 for t in ticks]


def test_variable_frame_rate_keeps_timestamps(tmp_path: Path) -> None:
    path, times = _vfr(tmp_path)
    read = list(read_frames(path, size=(32, 32)))
    assert [f.pts_s for f in read] == pytest.approx(times, abs=1e-9)
    assert [f.duration_s for f in read[:-1]] == pytest.approx(np.diff(times), abs=1e-9)


def test_times_count_from_the_first_frame(tmp_path: Path) -> None:
    path, times = _vfr(tmp_path, first_tick=5000)
    assert probe(path).start_s == pytest.approx(5.0)
    assert [f.pts_s for f in read_frames(path, size=(32, 32))] == pytest.approx(times, abs=1e-9)
    part = list(read_frames(path, start_s=times[7], end_s=times[12], size=(32, 32)))
    assert [f.pts_s for f in part] == pytest.approx(times[7:12], abs=1e-9)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mp4", "libx264"),
        ("a.avi", "libx264"),
        ("a.ts", "libx264"),
        ("a.avi", "mpeg4"),
        ("a.mpg", "mpeg2video"),
    ],
)
def test_a_span_is_the_same_with_and_without_seeking(tmp_path: Path, name: str, codec: str) -> None:
    options = {"g": "12", "bf": "2"}
    path = footage.write(tmp_path / name, footage.shot(3, 60), fps=25, codec=codec, options=options)
    everything = list(read_frames(path))
    assert len(everything) == 60
    part = list(read_frames(path, start_s=1.35, end_s=2.0))
    expected = [f for f in everything if 1.35 - 1e-6 <= f.pts_s < 2.0]
    assert [f.pts_s for f in part] == [f.pts_s for f in expected]
    assert len(part) == 16
    for got, want in zip(part, expected, strict=True):
        np.testing.assert_array_equal(got.rgb, want.rgb)


def test_joined_recordings_are_read_whole(tmp_path: Path) -> None:
    parts = [
        footage.write(tmp_path / f"{n}.ts", footage.shot(n, 60), fps=25, codec="libx264")
        for n in (1, 2)
    ]
    joined = tmp_path / "joined.ts"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    with VideoReader(joined) as reader:
        times = [frame.pts_s for frame in reader.frames()]
        health = reader.health
    assert times == pytest.approx(np.arange(120) / 25, abs=1e-4)
    assert (health.num_errors, health.lost_s) == (0, [])
    assert health.end_s == pytest.approx(4.8, abs=1e-4)
    # The second part is found by its place in the whole, not by its own timestamps.
    np.testing.assert_array_equal(
        read_at(joined, [3.0], size=(80, 48)), read_at(parts[1], [0.6], size=(80, 48))
    )


def test_read_at_gives_the_frame_shown(tmp_path: Path) -> None:
    path = footage.write(tmp_path / "a.mp4", footage.shot(4, 40))
    frames = [f.rgb for f in read_frames(path, size=(80, 48))]
    # 20 frames per second: frame n is shown from n/20; half a frame early still counts as n.
    times = [0.5, 0.0, 0.52, 0.53, 1.9, 99.0, 0.524]
    numbers = [10, 0, 10, 11, 38, 39, 10]
    got = read_at(path, times, size=(80, 48))
    assert got.shape == (7, 48, 80, 3)
    for picture, number in zip(got, numbers, strict=True):
        np.testing.assert_array_equal(picture, frames[number])


def test_read_at_takes_bytes_and_crops(tmp_path: Path) -> None:
    path = footage.write(tmp_path / "a.mp4", footage.shot(5, 20))
    whole = read_at(path, [0.5], size=(80, 48))
    part = read_at(path.read_bytes(), [0.5], size=(80, 48), crop=(10, 4, 32, 40))
    np.testing.assert_array_equal(part, whole[:, 4:44, 10:42])
    with pytest.raises(ValueError, match="leaves the picture"):
        read_at(path, [0.5], size=(80, 48), crop=(60, 0, 32, 40))
    with pytest.raises(ValueError, match="times_s is empty"):
        read_at(path, [], size=None)


def test_write_video_round_trip(tmp_path: Path) -> None:
    frames = footage.shot(6, 15, size=(96, 64))
    write_video(tmp_path / "a.mp4", frames, fps=29.97, crf=8)
    info = probe(tmp_path / "a.mp4")
    assert (info.width, info.height, info.pix_fmt) == (96, 64, "yuv420p")
    assert info.fps == pytest.approx(29.97, abs=1e-3)
    read = np.stack([f.rgb for f in read_frames(tmp_path / "a.mp4")])
    assert read.shape == frames.shape
    # A wrong matrix or range moves the mean by ten and more, a careless rounding by two.
    assert np.abs(read.mean((0, 1, 2)) - frames.mean((0, 1, 2))).max() < 0.5
    write_video(tmp_path / "odd.mp4", frames[:, :63, :95], fps=24)
    assert (probe(tmp_path / "odd.mp4").width, probe(tmp_path / "odd.mp4").height) == (94, 62)
    with pytest.raises(ValueError, match="uint8"):
        write_video(tmp_path / "bad.mp4", frames.astype(np.float32), fps=24)
    assert not (tmp_path / "bad.mp4").exists()


def _digest(folder: str, number: int) -> bytes:
    path = Path(folder) / f"{number}.mp4"
    # Decoder threads and dirty memory before, because equal input must not depend on the past.
    frames = footage.shot(7, 30, size=(352, 288))
    write_video(path, frames, fps=25)
    assert len(list(read_frames(path, num_threads=0))) == 30
    write_video(path, frames[:, :50, :70], fps=29.97)
    return hashlib.sha256(path.read_bytes()).digest()


def test_equal_pictures_give_equal_bytes(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        digests = pool.starmap(_digest, [(str(tmp_path), n) for n in range(4)])
    assert len(set(digests)) == 1


def _reason(source: Path | bytes) -> str:
    with pytest.raises(MediaError) as caught, VideoReader(source):
        pass
    return caught.value.reason


def test_bad_files_are_refused_by_reason(tmp_path: Path) -> None:
    good = footage.write(tmp_path / "good.mp4", footage.shot(8, 20)).read_bytes()
    empty, text = tmp_path / "empty.mp4", tmp_path / "text.mp4"
    empty.write_bytes(b"")
    text.write_text("No moving picture, only words. " * 50)
    assert _reason(empty) == "empty"
    assert _reason(text) == "not_a_video"
    assert _reason(good[: len(good) // 2]) == "no_moov"
    assert _reason(footage.write_audio(tmp_path / "a.m4a")) == "no_video_stream"
    assert _reason(tmp_path / "nowhere.mp4") == "missing"
    assert _reason(tmp_path) == "unreadable"


def test_a_hole_is_lost_to_the_next_key_frame(tmp_path: Path) -> None:
    frames = footage.shot(9, 100, size=(320, 192))
    path = footage.write(tmp_path / "a.mp4", frames, options={"g": "20", "bf": "0", "crf": "18"})
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = [p for p in container.demux(video=0) if p.size]
        begin = packets[45].pos
        end = packets[52].pos
    assert begin is not None and end is not None
    data[begin + 8 : end] = b"\xff" * (end - begin - 8)
    damaged = tmp_path / "damaged.mp4"
    damaged.write_bytes(data)
    with VideoReader(damaged) as reader:
        times = [round(f.pts_s * 20) for f in reader.frames()]
        health = reader.health
    assert times == [*range(45), *range(60, 100)]
    assert health.num_errors > 0
    assert health.lost_s == [(pytest.approx(2.25), pytest.approx(3.0))]


def test_a_cut_off_file_is_read_to_its_end(tmp_path: Path) -> None:
    path = footage.write(
        tmp_path / "a.mp4", footage.shot(10, 100), options={"g": "20", "movflags": "+faststart"}
    )
    write_video(tmp_path / "front.mp4", footage.shot(10, 100), fps=20)
    data = (tmp_path / "front.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) * 6 // 10])
    with VideoReader(tmp_path / "cut.mp4") as reader:
        num_frames = sum(1 for _ in reader.frames())
        (lost,) = reader.health.lost_s
    assert 20 < num_frames < 100
    assert lost == (pytest.approx(num_frames / 20, abs=1e-6), pytest.approx(5.0))
    assert probe(path).duration_s == pytest.approx(5.0)
