"""Encoding alone: whose fault a failure is, and that pictures are those of the analysis.

One process, no network, no GPU; footage is made here.
"""

import dataclasses
import hashlib
import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import VfmError
from common.media import VideoReader, read_frames
from curation.config import AnalysisConfig, CurateConfig, TranscodeConfig
from curation.decisions import BlurConfig
from curation.executors.local import attempt
from curation.run import curate
from curation.sources import SourceFile
from curation.stage import Failure
from curation.stages import transcode
from curation.stages.analyse import Analyse, Analysis
from curation.stages.transcode import ClipOrder, EncodedClip, SourceOrder, Transcode
from tests.curation import footage

CONFIG = TranscodeConfig(crf=5, threads=1)


def _orders(spans_us: list[tuple[int, int]], num_frames: list[int]) -> list[ClipOrder]:
    return [
        ClipOrder(
            clip_id=f"c{number}",
            content_id="x",
            start_us=start,
            end_us=end,
            num_frames=count,
            width=160,
            height=96,
        )
        for number, ((start, end), count) in enumerate(zip(spans_us, num_frames, strict=True))
    ]


def _source(path: Path, clips: list[ClipOrder], **more: Any) -> SourceOrder:
    return SourceOrder(content_id="x", source=path.name, path=str(path), clips=clips, **more)


@pytest.fixture
def two_clips(tmp_path: Path) -> SourceOrder:
    frames = np.concatenate([footage.shot(seed, 40) for seed in (1, 2)])
    path = footage.write(tmp_path / "a.mp4", frames)
    return _source(path, _orders([(0, 2_000_000), (2_000_000, 4_000_000)], [40, 40]))


@pytest.fixture
def small_files() -> Iterator[Any]:
    """A function that limits how large files may grow in this process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def test_a_disk_that_takes_no_more_ends_the_run(
    tmp_path: Path, two_clips: SourceOrder, small_files: Any
) -> None:
    spool = tmp_path / "spool"
    stage = Transcode(CONFIG, spool, retries=1)
    sizes = [clip.num_bytes for clip in attempt(stage, two_clips)]
    for limit in (0, 4096, min(sizes) // 2, min(sizes) - 1):
        for path in spool.iterdir():
            path.unlink()
        small_files(limit)
        with pytest.raises(VfmError, match=f"{spool} cannot be written.*grow that large"):
            attempt(stage, two_clips)
        small_files(resource.RLIM_INFINITY)
        assert list(spool.iterdir()) == []


def test_a_clip_is_tried_again_alone(
    tmp_path: Path, two_clips: SourceOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = VideoReader.yuv
    failures = [1]
    seen: list[float] = []

    def flaky(self: VideoReader, picture: Any, *, size: tuple[int, int]) -> Any:
        seen.append(float(picture.time))
        if picture.time >= 2.0 and failures:
            failures.pop()
            raise ValueError("the weather")
        return whole(self, picture, size=size)

    monkeypatch.setattr(VideoReader, "yuv", flaky)
    stage = Transcode(CONFIG, tmp_path / "spool", retries=1)
    first, second = attempt(stage, two_clips)
    assert isinstance(first, EncodedClip)
    assert isinstance(second, EncodedClip)
    assert seen.count(0.0) == 1
    failures.extend([1, 1])
    stage = Transcode(CONFIG, tmp_path / "other", retries=1)
    first, second = attempt(stage, two_clips)
    assert isinstance(first, EncodedClip)
    assert isinstance(second, Failure)
    assert (second.attempts, second.lasting) == (2, False)


def test_a_half_done_video_is_encoded_only_where_it_is_missing(
    tmp_path: Path, two_clips: SourceOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill leaves it, after each of what a clip leaves in the spool."""
    spool = tmp_path / "spool"
    encoded: list[str] = []
    encode = Transcode._encode

    def counted(self: Transcode, clip: ClipOrder, *rest: Any) -> EncodedClip:
        encoded.append(clip.clip_id)
        return encode(self, clip, *rest)

    monkeypatch.setattr(Transcode, "_encode", counted)
    whole = attempt(Transcode(CONFIG, spool, retries=0), two_clips)
    bytes_ = {path.name: path.read_bytes() for path in spool.iterdir()}
    assert sorted(bytes_) == ["c0.json", "c0.mp4", "c1.json", "c1.mp4"]
    for gone, again in (
        ([], []),
        (["c1.json"], ["c1"]),
        (["c1.json", "c1.mp4"], ["c1"]),
        (["c0.mp4"], ["c0"]),
        (list(bytes_), ["c0", "c1"]),
    ):
        for name in gone:
            (spool / name).unlink()
        encoded.clear()
        assert attempt(Transcode(CONFIG, spool, retries=0), two_clips) == whole
        assert encoded == again
        assert {path.name: path.read_bytes() for path in spool.iterdir()} == bytes_
    encoded.clear()
    other = dataclasses.replace(CONFIG, crf=CONFIG.crf + 5)
    attempt(Transcode(other, spool, retries=0), two_clips)
    assert encoded == ["c0", "c1"], "other parameters are another encoding"


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.mkv", "libx264", {"x264-params": "intra-refresh=1:keyint=20:bframes=0"}),
        ("a.mpg", "mpeg2video", {"bf": "2", "g": "12"}),
    ],
)
def test_a_late_clip_is_the_same_alone(
    tmp_path: Path, name: str, codec: str, options: dict[str, str]
) -> None:
    """Where a seek gives other pictures, a resumed run must not encode those."""
    frames = np.concatenate([footage.shot(seed, 40) for seed in (1, 2, 3)])
    path = footage.write(tmp_path / name, frames, fps=25, codec=codec, options=options)
    at = 94 if name == "a.mkv" else 38
    spans = [(0, at * 40_000), (at * 40_000, 4_800_000)]
    orders = _orders(spans, [at, 120 - at])
    digests = []
    for number, clips in enumerate((orders, orders[1:])):
        stage = Transcode(CONFIG, tmp_path / f"spool{number}", retries=0)
        results = attempt(stage, _source(path, clips))
        assert all(isinstance(result, EncodedClip) for result in results), results
        encoded = tmp_path / f"spool{number}" / "c1.mp4"
        digests.append(hashlib.sha256(encoded.read_bytes()).hexdigest())
    assert digests[0] == digests[1]


def _damaged(path: Path, seed: int) -> Path:
    data = bytearray(path.read_bytes())
    chance = random.Random(seed)
    for _ in range(4):
        at = chance.randrange(len(data) // 8, len(data) * 7 // 8)
        data[at : at + 3] = bytes(chance.randrange(256) for _ in range(3))
    damaged = path.with_name(f"damaged{seed}{path.suffix}")
    damaged.write_bytes(data)
    return damaged


def _pictures(path: Path, num_threads: int) -> list[str]:
    frames = read_frames(path, num_threads=num_threads)
    return [hashlib.sha256(frame.rgb.tobytes()).hexdigest() for frame in frames]


def test_damage_looks_the_same_on_any_number_of_cores(tmp_path: Path) -> None:
    frames = np.concatenate([footage.shot(seed, 60) for seed in (1, 2)])
    path = footage.write(tmp_path / "a.mp4", frames, fps=25, options={"g": "30"})
    differing = 0
    for seed in range(8):
        damaged = _damaged(path, seed)
        differing += _pictures(damaged, 1) != _pictures(damaged, 4)
        found: list[Analysis] = []
        for threads in (1, 4):
            config = CurateConfig(input="", output="", analysis=AnalysisConfig(threads=threads))
            item = SourceFile(source="a.mp4", path=str(damaged), content_id="x")
            (analysis,) = Analyse(config, tmp_path / "thumbs").process(item)
            assert isinstance(analysis, Analysis)
            found.append(analysis)
        assert found[0] == found[1]
    assert differing, "the damage does not show what is tested"


def test_a_damaged_source_is_encoded_with_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = np.concatenate([footage.shot(seed, 60) for seed in (1, 2)])
    whole = footage.write(tmp_path / "whole.mp4", frames, fps=25, options={"g": "30"})
    footage.write(tmp_path / "in" / "good.mp4", frames[::-1], fps=25)
    damaged = next(d for d in (_damaged(whole, n) for n in range(20)) if _has_errors(d))
    damaged.rename(tmp_path / "in" / "damaged.mp4")
    threads: dict[str, int] = {}

    def noted(source: str, *, num_threads: int, **others: Any) -> VideoReader:
        threads[Path(source).name] = num_threads
        return VideoReader(source, num_threads=num_threads, **others)

    monkeypatch.setattr(transcode, "VideoReader", noted)
    blur = BlurConfig(min=None)
    curate(CurateConfig(input=str(tmp_path / "in"), output=str(tmp_path / "out"), blur=blur))
    assert threads == {"damaged.mp4": 1, "good.mp4": 0}


def _has_errors(path: Path) -> bool:
    with VideoReader(path) as reader:
        return sum(1 for _ in reader.frames()) > 60 and reader.health.num_errors > 0
