"""Files in unusual containers, curated from end to end: several streams, MPEG-TS, a start that is
not zero, an edit list, odd sizes, hidden files. Other forms: `test_run` (rotation, variable frame
rate) and `tests/common/test_media` (codecs, depths). One process, no network, no GPU.
"""

import tarfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from common.media import VideoReader
from curation.config import CurateConfig
from curation.decisions import BlurConfig
from curation.run import CurateResult, curate
from tests.curation import footage

_PLAIN = Disposition(0)


def _curate(root: Path) -> CurateResult:
    config = CurateConfig(
        input=str(root / "in"), output=str(root / "out"), blur=BlurConfig(min=None)
    )
    return curate(config)


def _rows(root: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(root / "out" / f"{name}.parquet").to_pylist()


def _write_streams(path: Path, streams: Sequence[tuple[np.ndarray, Disposition]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        made = []
        for frames, disposition in streams:
            stream = container.add_stream("libx264", rate=footage.FPS, options={"g": "10"})
            assert isinstance(stream, VideoStream)
            stream.height, stream.width = frames.shape[1:3]
            stream.pix_fmt = "yuv420p"
            stream.disposition = disposition
            made.append(stream)
        for stream, (frames, _) in zip(made, streams, strict=True):
            for number, rgb in enumerate(frames):
                picture = VideoFrame.from_ndarray(np.ascontiguousarray(rgb), "rgb24")
                picture.pts, picture.time_base = number, Fraction(1, footage.FPS)
                container.mux(stream.encode(picture.reformat(format="yuv420p")))
            container.mux(stream.encode(None))


@pytest.mark.parametrize(
    ("dispositions", "chosen"),
    [
        ((_PLAIN, _PLAIN, _PLAIN), 1),
        ((_PLAIN, _PLAIN, Disposition.default), 2),
        ((Disposition.default, _PLAIN, Disposition.default), 2),
    ],
)
def test_the_default_stream_else_the_largest_is_the_video(
    tmp_path: Path, dispositions: tuple[Disposition, ...], chosen: int
) -> None:
    sizes = [(176, 96), (320, 192), (256, 144)]
    shots = [footage.shot(4, 10, size=size) for size in sizes]
    path = tmp_path / "a.mkv"
    _write_streams(path, list(zip(shots, dispositions, strict=True)))
    with VideoReader(path) as reader:
        assert (reader.info.width, reader.info.height) == sizes[chosen]
        others = [f"{i} (h264 {w}x{h})" for i, (w, h) in enumerate(sizes) if i != chosen]
        assert reader.info.notes == f"video streams not used: {', '.join(others)}"
        shapes = {(f.picture.width, f.picture.height) for f in reader.frames(start_s=0.25)}
        assert shapes == {sizes[chosen]}


def test_streams_that_are_not_used_and_hidden_files_are_named(tmp_path: Path) -> None:
    small, large = footage.shot(4, 30), footage.shot(5, 30, size=(256, 144))
    _write_streams(tmp_path / "in" / "two.mkv", [(small, _PLAIN), (large, _PLAIN)])
    for name in (".a.mp4", ".cache/b.mp4"):
        footage.write(tmp_path / "in" / name, small[:2])
    result = _curate(tmp_path)
    note = "video streams not used: 0 (h264 160x96)"
    assert result.summary["video_notes"] == {"two.mkv": note}
    assert result.summary["files_hidden"] == [".a.mp4", ".cache"]
    assert result.summary["clips_kept"] == 1
    (row,) = _rows(tmp_path, "videos")
    assert (row["width"], row["height"], row["notes"]) == (256, 144, note)


def test_mpeg_ts_is_read_as_it_is(tmp_path: Path) -> None:
    """From a start that is not zero, with B-frames: right times, one decode each, no remux."""
    frames = np.concatenate([footage.shot(seed, 30, size=(256, 144)) for seed in (1, 2)])
    ticks = [900_000 + number * 4500 for number in range(len(frames))]
    path = footage.write(
        tmp_path / "in" / "a.ts",
        frames,
        ticks=ticks,
        time_base=Fraction(1, 90000),
        options={"g": "12", "bf": "2", "crf": "18"},
    )
    with VideoReader(path) as reader:
        assert reader.info.start_s > 9
        assert [f.pts_s for f in reader.frames()] == pytest.approx(np.arange(60) / 20, abs=1e-4)
    result = _curate(tmp_path)
    assert result.summary["decodes"] == {"analysis": 1, "transcode": 1}
    spans = [(row["start_s"], row["end_s"], row["num_frames"]) for row in _rows(tmp_path, "clips")]
    assert spans == [
        (pytest.approx(0, abs=1e-4), pytest.approx(1.5, abs=1e-4), 30),
        (pytest.approx(1.5, abs=1e-4), pytest.approx(3.0, abs=1e-4), 30),
    ]


def test_an_edit_list_hides_what_it_cuts(tmp_path: Path) -> None:
    """MP4 writes pictures before time 0 as an edit list; they are decoded and not shown."""
    frames = footage.shot(4, 50, size=(256, 144))
    footage.write(
        tmp_path / "in" / "a.mp4",
        frames,
        ticks=list(range(-10, 40)),
        options={"g": "50", "bf": "2", "crf": "18"},
    )
    result = _curate(tmp_path)
    assert result.summary["clips_kept"] == 1
    (row,) = _rows(tmp_path, "clips")
    assert (row["start_s"], row["end_s"], row["num_frames"]) == (0.0, 2.0, 40)


@pytest.mark.parametrize(
    ("transfer", "note"),
    [
        ("smpte2084", "hdr: PQ"),
        ("arib-std-b67", "hdr: HLG"),
        ("bt709", ""),
    ],
)
def test_high_dynamic_range_is_named(tmp_path: Path, transfer: str, note: str) -> None:
    tags = f"colorprim=bt2020:transfer={transfer}:colormatrix=bt2020nc"
    path = footage.write(
        tmp_path / "a.mp4",
        footage.shot(4, 5),
        pix_fmt="yuv420p10le",
        options={"crf": "18", "x264-params": tags},
    )
    with VideoReader(path) as reader:
        assert reader.info.pix_fmt == "yuv420p10le"
        assert reader.info.notes == note


def test_odd_sizes_and_oblong_pixels_are_curated(tmp_path: Path) -> None:
    footage.write(
        tmp_path / "in" / "a.mp4",
        footage.shot(4, 30, size=(257, 145)),
        pix_fmt="yuv444p",
        pixel_aspect=Fraction(4, 3),
    )
    result = _curate(tmp_path)
    assert (result.exit_code, result.summary["clips_kept"]) == (0, 1)
    (row,) = _rows(tmp_path, "clips")
    assert (row["width"], row["height"], row["num_frames"]) == (343, 145, 30)
    assert (row["start_s"], row["end_s"]) == (0.0, pytest.approx(1.5))
    (tar,) = (tmp_path / "out" / "shards").rglob("*.tar")
    with tarfile.open(tar) as members:
        (name,) = [name for name in members.getnames() if name.endswith(".mp4")]
        video = members.extractfile(name)
        assert video is not None
        with VideoReader(video.read()) as reader:
            assert (reader.info.width, reader.info.height) == (342, 144)
            times = [frame.pts_s for frame in reader.frames()]
    assert times == pytest.approx(np.arange(30) / 20, abs=1e-3)
