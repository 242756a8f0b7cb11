"""Codecs, crops, copies and sound: what is decoded afterwards, beside the source.

One process, no network, no GPU; footage is made here.
"""

import dataclasses
import hashlib
import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.audio.frame import AudioFrame
from av.video.frame import VideoFrame

from common.errors import ConfigError
from common.media import VideoReader, read_frames
from curation.config import CurateConfig, ReshardConfig, TranscodeConfig
from curation.decisions import BlurConfig, MotionConfig
from curation.executors.attempt import attempt
from curation.refilter import reshard
from curation.run import curate
from curation.shard import read_sharded
from curation.stage import Failure
from curation.stages.transcode import ClipOrder, EncodedClip, SourceOrder, Transcode, even_box
from dataloading.folder import open_folder
from dataloading.verify import verify
from tests.curation import footage

SOFTWARE = ("h264", "hevc", "av1")


def order(number: int, start: int, end: int, count: int, **more: Any) -> ClipOrder:
    size: dict[str, Any] = {"width": 160, "height": 96} | more
    return ClipOrder(
        clip_id=f"c{number}", content_id="x", start_us=start, end_us=end, num_frames=count, **size
    )


def run(spool: Path, path: Path, clips: list[ClipOrder], **settings: Any) -> list[Any]:
    stage = Transcode(TranscodeConfig(**settings), spool, retries=0)
    source = SourceOrder(content_id="x", source=path.name, path=str(path), clips=clips)
    return list(attempt(stage, source))


def pictures(path: Path) -> tuple[np.ndarray, list[float]]:
    frames = list(read_frames(path))
    return np.stack([frame.rgb for frame in frames]), [frame.pts_s for frame in frames]


def psnr_db(one: np.ndarray, other: np.ndarray) -> float:
    error = np.square(one.astype(np.float64) - other).mean()
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def key_times(path: Path) -> list[float]:
    """Seconds of the key frames, in the file's own clock."""
    with av.open(str(path)) as container:
        clock = float(container.streams.video[0].time_base or 1)
        packets = list(container.demux(video=0))
    return sorted(p.pts * clock for p in packets if p.is_keyframe and p.pts is not None)


def test_a_varying_rate_ends_where_the_index_says(tmp_path: Path) -> None:
    """The last picture's own length goes into the file, and shards of such clips are sound."""
    source = tmp_path / "in" / "a.mp4"
    for seed in range(4):
        steps = np.random.default_rng(seed).choice([40, 80], 60)
        ticks = np.concatenate([[0], np.cumsum(steps)[:-1]]).tolist()
        footage.write(
            source.with_stem(f"a{seed}"),
            footage.shot(seed, 60),
            ticks=ticks,
            time_base=Fraction(1, 1000),
        )
    output = tmp_path / "out"
    curate(CurateConfig(input=str(source.parent), output=str(output), max_clip_s=1.8))
    assert [d for step in verify(open_folder(output), num_threads=1) for d in step.defects] == []
    _, sharded = read_sharded(output / "shards")
    assert len(sharded) > 6
    for clip in sharded.values():
        content = clip.read()
        at = content.index(b"elst") + 12  # the edit's length, in milliseconds
        declared_ms = int.from_bytes(content[at : at + 4], "big")
        assert declared_ms == pytest.approx(clip.encoded.duration_s * 1000, abs=2)


@pytest.mark.parametrize("codec", SOFTWARE)
def test_each_codec_gives_the_pictures_at_their_times(
    tmp_path: Path, codec: str, capfd: pytest.CaptureFixture[str]
) -> None:
    frames = np.concatenate([footage.shot(seed, 40) for seed in (1, 2)])
    ticks = np.cumsum(np.random.default_rng(0).integers(20, 90, 80)).tolist()  # VFR
    path = footage.write(
        tmp_path / "a.mp4", frames, ticks=ticks, time_base=Fraction(1, 1000), options={"crf": "4"}
    )
    seen, times = pictures(path)
    start, end = round(times[40] * 1e6), round((times[79] + 0.05) * 1e6)
    settings: dict[str, Any] = {"codec": codec, "crf": 8, "threads": 2, "gop_s": 0.5}
    (clip,) = run(tmp_path / "spool", path, [order(0, start, end, 40)], **settings)
    assert isinstance(clip, EncodedClip), clip
    threads = (int(entry.name) for entry in Path("/proc/self/task").iterdir())
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_OTHER}
    encoded = tmp_path / "spool" / "c0.mp4"
    got, got_times = pictures(encoded)
    assert len(got) == 40
    assert psnr_db(got, seen[40:]) > 36
    # Beside its neighbours, each picture is nearest to its own.
    for shift in (-1, 1):
        assert psnr_db(got[1:-1], seen[40:][1 + shift : 39 + shift]) < psnr_db(got, seen[40:]) - 3
    assert got_times == pytest.approx([t - times[40] for t in times[40:]], abs=1.5e-3)
    with av.open(str(encoded)) as container:
        assert container.streams.video[0].codec_context.name in (codec, "libdav1d", "av1")
    assert key_times(encoded) == pytest.approx(clip.keyframes_s, abs=1.5e-3)
    gop = max(1, round(0.5 * clip.fps))
    assert clip.keyframes_s == pytest.approx([got_times[i] for i in range(0, 40, gop)], abs=1.5e-3)
    assert capfd.readouterr() == ("", ""), "encoders keep quiet"
    # Equal input, equal bytes.
    digest = hashlib.sha256(encoded.read_bytes()).digest()
    run(tmp_path / "again", path, [order(0, start, end, 40)], **settings)
    assert hashlib.sha256((tmp_path / "again" / "c0.mp4").read_bytes()).digest() == digest


def test_everything_that_changes_bytes_is_in_the_hash(tmp_path: Path) -> None:
    def hash_of(**settings: Any) -> str:
        return Transcode(TranscodeConfig(**settings), tmp_path, retries=0).params_hash

    changes: list[dict[str, Any]] = [
        {},
        {"codec": "hevc"},
        {"codec": "av1"},
        {"crf": 20},
        {"preset": "slow"},
        {"threads": 3},
        {"gop_s": 0.5},
        {"audio": "aac"},
        {"copy": True},
        {"crop": False},
        {"encoder": "nvenc"},
        {"max_short_side_px": None},
    ]
    assert len({hash_of(**change) for change in changes}) == len(changes)
    assert hash_of(preset="veryfast") == hash_of(), "null is a name for the same"
    params = Transcode(TranscodeConfig(), tmp_path, retries=0).params()
    assert params["libraries"]["pyav"] == av.__version__


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"codec": "vp8"}, "transcode.codec=vp8 is impossible: one of av1, h264, hevc"),
        ({"crf": 60}, r"transcode.crf=60 is impossible: 0 \(best\) to 51"),
        ({"codec": "av1", "preset": "veryfast"}, "transcode.preset=veryfast .* for libsvtav1"),
        ({"encoder": "nvenc", "preset": "fast"}, "transcode.preset=fast .* for h264_nvenc"),
        ({"encoder": "qsv"}, "transcode.encoder=qsv is impossible: software or nvenc"),
        ({"audio": "mp3"}, "transcode.audio=mp3 is impossible: none or aac"),
    ],
)
def test_impossible_choices_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TranscodeConfig(**settings)
    assert TranscodeConfig(codec="av1", crf=60).encoding(25.0).preset == "10"


def test_nvenc_without_its_hardware_is_refused_before_any_work(tmp_path: Path) -> None:
    try:
        Transcode(TranscodeConfig(encoder="nvenc"), tmp_path, retries=0).setup()
    except ConfigError:
        pass
    else:
        pytest.skip("this machine has NVENC")
    footage.write(tmp_path / "in" / "a.mp4", footage.shot(1, 30))
    config = CurateConfig(
        input=str(tmp_path / "in"),
        output=str(tmp_path / "out"),
        transcode=TranscodeConfig(encoder="nvenc"),
    )
    with pytest.raises(ConfigError, match="h264_nvenc does not work here .*needs an NVIDIA GPU"):
        curate(config)
    assert not (tmp_path / "out" / "clips.parquet").exists()


@pytest.mark.parametrize("size", [(128, 64), (64, 32)])
def test_a_crop_leaves_the_bars_out(tmp_path: Path, size: tuple[int, int]) -> None:
    inside = footage.shot(3, 30, size=(128, 64))
    frames = np.zeros((30, 96, 160, 3), np.uint8)
    frames[:, 16:80, 20:148] = inside
    path = footage.write(tmp_path / "a.mp4", frames, options={"crf": "2"})
    clip = order(0, 0, 1_500_000, 30, width=size[0], height=size[1], box=(20, 16, 128, 64))
    run(tmp_path / "spool", path, [clip], crf=4)
    got, _ = pictures(tmp_path / "spool" / "c0.mp4")
    assert got.shape[1:3] == size[::-1]
    seen, _ = pictures(path)
    expected = seen[:, 16:80, 20:148]
    if size != (128, 64):
        expected = expected.reshape(30, 32, 2, 64, 2, 3).mean((2, 4))
    assert psnr_db(got, expected) > 33
    shifted = np.roll(expected, 2, axis=2)
    assert psnr_db(got, shifted) < psnr_db(got, expected) - 6


def test_boxes_are_even_and_inside() -> None:
    assert even_box(None) is None
    for left, top, width, height in [(0, 0, 9, 9), (1, 3, 10, 11), (5, 2, 101, 50)]:
        box = even_box((left, top, width, height))
        assert box is not None
        assert all(edge % 2 == 0 for edge in box)
        assert left <= box[0] <= left + 1 and top <= box[1] <= top + 1
        assert box[0] + box[2] <= left + width and box[1] + box[3] <= top + height
        assert box[2] >= width - 3 and box[3] >= height - 3


def test_a_letterboxed_video_is_cropped_into_its_own_bucket(tmp_path: Path) -> None:
    frames = np.zeros((40, 144, 256, 3), np.uint8)
    frames[:, 24:120] = footage.shot(4, 40, size=(256, 96), step_px=3)
    footage.write(tmp_path / "in" / "a.mp4", frames)
    sizes = {}
    for crop in (True, False):
        out = tmp_path / f"out{crop}"
        config = CurateConfig(
            input=str(tmp_path / "in"),
            output=str(out),
            blur=BlurConfig(min=None),
            motion=MotionConfig(min=None),
            transcode=TranscodeConfig(crop=crop),
        )
        curate(config)
        _, clips = read_sharded(out / "shards")
        (clip,) = clips.values()
        sizes[crop] = (clip.encoded.width, clip.encoded.height)
        with VideoReader(clip.read()) as reader:
            assert (reader.info.width, reader.info.height) == sizes[crop]
        assert [d for step in verify(open_folder(out), num_threads=1) for d in step.defects] == []
    assert sizes[False] == (256, 144)
    assert sizes[True][0] == 256 and 92 <= sizes[True][1] <= 96


def test_a_copy_is_the_source_to_the_bit(tmp_path: Path) -> None:
    frames = np.concatenate([footage.shot(seed, 40) for seed in (1, 2, 3)])
    options = {"x264-params": "keyint=20:min-keyint=20:scenecut=0:open-gop=0:bframes=3"}
    path = footage.write(tmp_path / "a.mp4", frames, options=options)
    seen, _ = pictures(path)
    clips = [
        order(0, 0, 2_000_000, 40),
        order(1, 2_000_000, 3_500_000, 30),  # ends inside a group
        order(2, 4_000_000, 6_000_000, 40),
        order(3, 4_100_000, 6_000_000, 38),  # begins inside one
    ]
    results = run(tmp_path / "spool", path, clips, copy=True, crf=18)
    assert all(isinstance(result, EncodedClip) for result in results), results
    spans = [(0, 40), (40, 70), (80, 120), (82, 120)]
    exact = []
    for number, (first, last) in enumerate(spans):
        got, times = pictures(tmp_path / "spool" / f"c{number}.mp4")
        assert times == pytest.approx([i / 20 for i in range(last - first)], abs=1e-4)
        assert psnr_db(got, seen[first:last]) > 30
        exact.append(np.array_equal(got, seen[first:last]))
    assert exact == [True, False, True, False]
    assert results[0].keyframes_s == pytest.approx([0, 1])
    # Asked for another size or codec, nothing is copied.
    for settings in ({"codec": "hevc"}, {}):
        small = order(0, 0, 2_000_000, 40, **({} if settings else {"width": 80, "height": 48}))
        run(tmp_path / "other", path, [small], copy=True, **settings)
        got, _ = pictures(tmp_path / "other" / "c0.mp4")
        assert not np.array_equal(got[: len(seen)], seen[:40])


def test_open_groups_are_encoded(tmp_path: Path) -> None:
    """Their first pictures need the group before, so a copy would lose or spoil them."""
    frames = np.concatenate([footage.shot(seed, 40) for seed in (1, 2)])
    options = {"x264-params": "keyint=20:min-keyint=20:scenecut=0:open-gop=1:bframes=3:b-adapt=0"}
    path = footage.write(tmp_path / "a.mp4", frames, options=options)
    seen, times = pictures(path)
    keys = key_times(path)
    first = next(i for i, t in enumerate(times) if abs(t - (keys[1] - times[0])) < 1e-3)
    clip = order(0, round(times[first] * 1e6), 4_000_000, 80 - first)
    (result,) = run(tmp_path / "spool", path, [clip], copy=True)
    assert isinstance(result, EncodedClip)
    got, _ = pictures(tmp_path / "spool" / "c0.mp4")
    assert len(got) == 80 - first and psnr_db(got, seen[first:]) > 30


def test_one_clip_that_cannot_be_had_fails_alone(tmp_path: Path) -> None:
    frames = footage.shot(1, 60)
    path = footage.write(tmp_path / "a.mp4", frames)
    clips = [order(0, 0, 1_000_000, 20), order(1, 1_000_000, 2_000_000, 99)]
    for copy in (False, True):
        more = [*clips, order(2, 2_000_000, 3_000_000, 20)]
        first, second, third = run(tmp_path / f"spool{copy}", path, more, copy=copy)
        assert isinstance(first, EncodedClip) and isinstance(third, EncodedClip)
        assert isinstance(second, Failure) and second.reason == "changed"


RATE_HZ = 48000


def with_sound(path: Path, *, late_s: float = 0.0) -> np.ndarray:
    """Three seconds of a video with noise as PCM; returns the noise."""
    noise = np.random.default_rng(0).normal(0, 0.2, RATE_HZ * 3)
    # Low-passed, so that a lossy codec keeps its shape.
    noise = np.convolve(noise, np.hanning(65) / np.hanning(65).sum(), "same")
    sound = (noise * 4).astype(np.float32).clip(-1, 1)
    frames = footage.shot(1, 60)
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=20, options={"crf": "10"})
        video.width, video.height, video.pix_fmt = 160, 96, "yuv420p"
        audio = container.add_stream("pcm_f32le", rate=RATE_HZ, layout="mono")
        for rgb in frames:
            container.mux(video.encode(VideoFrame.from_ndarray(np.ascontiguousarray(rgb), "rgb24")))
        container.mux(video.encode(None))
        for at in range(0, len(sound), 960):
            part = AudioFrame.from_ndarray(sound[None, at : at + 960], format="flt", layout="mono")
            part.sample_rate, part.pts = RATE_HZ, at + round(late_s * RATE_HZ)
            part.time_base = Fraction(1, RATE_HZ)
            container.mux(audio.encode(part))
        container.mux(audio.encode(None))
    return sound


def decoded_sound(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        parts = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
    return np.concatenate(parts)


@pytest.mark.parametrize("late_s", [0.0, 0.25])
def test_sound_is_cut_to_the_sample(tmp_path: Path, late_s: float) -> None:
    path = tmp_path / "a.mkv"
    sound = with_sound(path, late_s=late_s)
    timeline = np.concatenate([np.zeros(round(late_s * RATE_HZ), np.float32), sound])
    spans = [(0, 1_000_000, 20), (1_000_000, 2_150_000, 23), (2_150_000, 3_000_000, 17)]
    clips = [order(number, *span) for number, span in enumerate(spans)]
    results = run(tmp_path / "spool", path, clips, audio="aac")
    assert all(isinstance(result, EncodedClip) for result in results), results
    for number, (start, end, count) in enumerate(spans):
        got = decoded_sound(tmp_path / "spool" / f"c{number}.mp4")
        first, last = (round(edge * RATE_HZ / 1e6) for edge in (start, end))
        wanted = timeline[first:last]
        # Decoders may hand out the last frame of 1024 whole; the file says where the sound ends.
        assert len(wanted) <= len(got) < len(wanted) + 1024
        with av.open(str(tmp_path / "spool" / f"c{number}.mp4")) as container:
            track = container.streams.audio[0]
            assert (track.start_time, track.duration, track.rate) == (0, len(wanted), RATE_HZ)
        length = min(len(wanted), len(got))
        window = 200
        trimmed = wanted[window : length - window]
        lags = range(-window, window + 1)
        likeness = [float(trimmed @ got[window + lag : length - window + lag]) for lag in lags]
        assert lags[int(np.argmax(likeness))] == 0
        error = np.square(wanted[:length] - got[:length]).mean() / np.square(wanted).mean()
        assert error < 0.02
        assert len(pictures(tmp_path / "spool" / f"c{number}.mp4")[0]) == count


def test_a_source_without_sound_gives_none(tmp_path: Path) -> None:
    path = footage.write(tmp_path / "a.mp4", footage.shot(1, 20))
    (clip,) = run(tmp_path / "spool", path, [order(0, 0, 1_000_000, 20)], audio="aac")
    assert isinstance(clip, EncodedClip)
    with av.open(str(tmp_path / "spool" / "c0.mp4")) as container:
        assert not container.streams.audio


def test_virtual_clips_are_encoded_when_shards_are_made(tmp_path: Path) -> None:
    for seed in (1, 2):
        frames = footage.shot(seed, 30, size=(256, 144), step_px=3.0)
        footage.write(tmp_path / "in" / f"{seed}.mp4", frames)
    config = CurateConfig(
        input=str(tmp_path / "in"), output=str(tmp_path / "out"), blur=BlurConfig(min=None)
    )
    summary = curate(dataclasses.replace(config, encode=False)).summary
    assert summary["clips_kept"] == 2
    assert summary["shards"] == {"clips": 0, "to_add": 2, "to_leave_out": 0}
    assert summary["decodes"]["transcode"] == 0
    assert not (tmp_path / "out" / "shards").exists()
    assert "2 clips to add" in (tmp_path / "out" / "report" / "index.html").read_text()
    assert curate(dataclasses.replace(config, encode=False)).exit_code == 0
    assert reshard(ReshardConfig(folder=str(tmp_path / "out"))).exit_code == 0
    curate(dataclasses.replace(config, output=str(tmp_path / "whole")))
    manifests = [
        json.loads((tmp_path / name / "shards" / "manifest.json").read_text())
        for name in ("out", "whole")
    ]
    assert manifests[0] == manifests[1], "the same shards, byte for byte"
