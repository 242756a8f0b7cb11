"""High dynamic range through a whole run: scores, thumbnails and clips show what BT.2446 makes of
it. Made video; one process, no network."""

import io
import tarfile
from pathlib import Path

import av
import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from common.media import VideoReader
from common.planes import shown_luma, small_picture
from curation.config import AnalysisConfig, CurateConfig, TranscodeConfig
from curation.run import curate
from tests.common.test_tone_map import by_the_book, hlg_of, pq_of

_TRC = {"PQ": 16, "HLG": 18}
_COLUMNS, _ROWS, _SIDE = 8, 4, 40
_BAR = 20


def _patches() -> np.ndarray:
    """`float64 [4, 8, 3]`: linear BT.2020 over 1000 cd/m2, from 0.5 to 700."""
    random = np.random.default_rng(2)
    light = np.geomspace(0.0005, 0.7, _COLUMNS)[None, :, None]
    colours = random.uniform(0.15, 1, (_ROWS, 1, 3))
    colours[0] = 1
    return light * colours


def _written(path: Path, transfer: str, *, tagged: bool = True) -> Path:
    """Patches between black bars, a thin line running over them so that something moves."""
    light = _patches()
    coded = pq_of(1000 * light) if transfer == "PQ" else hlg_of(light)
    picture = np.repeat(np.repeat(coded, _SIDE, axis=0), _SIDE, axis=1)
    picture = np.pad(picture, ((_BAR, _BAR), (0, 0), (0, 0)))
    height, width = picture.shape[:2]
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx265", rate=20, options={"x265-params": "crf=4:log-level=error"}
        )
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p10le"
        context = stream.codec_context
        context.colorspace, context.color_primaries, context.color_range = 9, 9, 1
        context.color_trc = _TRC[transfer]
        for number in range(40):
            moving = picture.copy()
            moving[_BAR : height - _BAR, 3 * number : 3 * number + 2] = 0.6
            rgb = np.round(moving * 65535).astype(np.uint16)
            frame = VideoFrame.from_ndarray(rgb, "rgb48le")
            frame = frame.reformat(format="yuv420p10le", dst_colorspace=9, dst_color_range="MPEG")
            frame.colorspace = frame.color_primaries = 9
            frame.color_trc, frame.color_range, frame.pts = _TRC[transfer], 1, number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def _shown(transfer: str) -> np.ndarray:
    """`[4, 8, 3]`, R'G'B' of 0 to 255 by the formulas."""
    light = _patches()
    if transfer == "HLG":
        light = light * (light @ [0.2627, 0.6780, 0.0593])[..., None] ** 0.2
    return by_the_book(light)


def _middles(picture: np.ndarray, bar: int) -> np.ndarray:
    """`[4, 8, 3]`: the middles of the patches in a picture of any size."""
    inner = picture[bar : len(picture) - bar].astype(float)
    height, width = inner.shape[0] / _ROWS, inner.shape[1] / _COLUMNS
    rows = [
        [
            inner[
                round((y + 0.3) * height) : round((y + 0.7) * height),
                round((x + 0.3) * width) : round((x + 0.7) * width),
            ].mean((0, 1))
            for x in range(_COLUMNS)
        ]
        for y in range(_ROWS)
    ]
    return np.array(rows)


@pytest.mark.parametrize("transfer", ["PQ", "HLG"])
def test_pictures_of_every_size_are_tone_mapped(tmp_path: Path, transfer: str) -> None:
    with VideoReader(_written(tmp_path / "a.mp4", transfer)) as reader:
        assert (reader.info.hdr, reader.info.notes) == (transfer, f"hdr: {transfer}")
        picture = list(reader.frames())[-1].picture
        wanted = _shown(transfer)
        whole = reader.rgb(picture)
        assert np.abs(_middles(whole, _BAR) - wanted).mean() < 1.5
        bgr, luma = small_picture(reader, picture, (256, 160))
        assert np.abs(_middles(bgr[..., ::-1], 16) - wanted).mean() < 1.5
        weights = [0.2126, 0.7152, 0.0722]
        assert np.abs(_middles(luma[..., None], 16)[..., 0] - wanted @ weights).mean() < 1.5
        brightness = shown_luma(reader, picture)
        assert brightness is not None and brightness[: _BAR - 1].max() <= 1
        assert np.abs(_middles(brightness[..., None], _BAR)[0] - wanted[0, :, :1]).mean() < 1.5
        yuv = reader.yuv(picture, size=(320, 200))
        assert (yuv.format.name, yuv.color_trc, yuv.colorspace) == ("yuv420p", 1, 1)


@pytest.mark.parametrize("tone_map", [True, False])
def test_a_run_gives_standard_clips_unless_told_otherwise(tmp_path: Path, tone_map: bool) -> None:
    _written(tmp_path / "in" / "a.mp4", "PQ")
    curate(
        CurateConfig(
            input=str(tmp_path / "in"),
            output=str(tmp_path / "out"),
            analysis=AnalysisConfig(text=False),
            transcode=TranscodeConfig(tone_map=tone_map, crf=4, crop=True),
        )
    )
    (row,) = pq.read_table(tmp_path / "out" / "clips.parquet").to_pylist()
    assert row["kept"], row["reject_reason"]
    wanted = _shown("PQ")
    box = (row["crop_left"], row["crop_top"], row["crop_width"], row["crop_height"])
    assert box == (0, _BAR, 320, 160), "bars are found in the mapped picture"
    thumbnail = cv2.imread(str(tmp_path / "out" / row["thumbnail"]))
    assert thumbnail is not None
    bar = round(_BAR * len(thumbnail) / 200)
    assert np.abs(_middles(thumbnail[..., ::-1], bar) - wanted).mean() < 4
    (tar,) = (tmp_path / "out" / "shards").rglob("*.tar")
    with tarfile.open(tar) as members:
        (name,) = [n for n in members.getnames() if n.endswith(".mp4")]
        member = members.extractfile(name)
        assert member is not None
        data = member.read()
    with av.open(io.BytesIO(data), "r") as clip:
        frame = next(clip.decode(video=0))
        tags = (frame.format.name, frame.color_trc, frame.colorspace, frame.color_primaries)
        assert tags == (("yuv420p", 1, 1, 1) if tone_map else ("yuv420p", 16, 9, 9))
    with VideoReader(data) as reader:
        last = list(reader.frames())[-1].picture
        apart = np.abs(_middles(reader.rgb(last), 0) - wanted)
    assert apart.mean() < (2 if tone_map else 6), "eight bits of PQ are coarse"
