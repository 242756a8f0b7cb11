"""Windows of plain video files against PyAV itself (wiring only).

The reference decodes each file from its first packet to its last and knows nothing of seeking.
"""

import copy
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from common.errors import ConfigError, DataError, MediaError
from common.indexed_video import IndexedVideo
from dataloading.video import VideoDataset, VideoLoader
from tests.dataloading.films import FILES, dataset, reference, run, same, write

FOOTAGE = Path(os.environ.get("VFM_TEST_VIDEOS", Path(__file__).parents[3] / "shared/videos"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("color", ["rgb", "ycbcr"])
def test_every_window_is_what_a_whole_decode_gives(
    name: str, color: str, files: dict[str, Path]
) -> None:
    frames, times_s = reference(files[name], color)
    dataset = VideoDataset(
        [files[name]], sequence_length=4, color=color, dtype=torch.uint8, layout="thwc"
    )
    assert len(dataset) == len(frames) - 3
    for first in np.random.RandomState(0).permutation(len(dataset))[:: 1 if color == "rgb" else 4]:
        window = dataset.read(int(first))
        assert np.array_equal(window.pixels.numpy(), frames[first : first + 4]), first
        assert window.times_s.numpy() == pytest.approx(times_s[first : first + 4], abs=1e-9)
    # The containers whose packets tell, and only those, are read without a full decode.
    assert (dataset.tables[0].ticks is None) == name.endswith((".avi", ".ts"))


def test_strides_and_rates(files: dict[str, Path]) -> None:
    path = files["gaps.mp4"]
    frames, times_s = reference(path)
    common: dict[str, Any] = dict(dtype=torch.uint8, layout="thwc")
    strided = VideoDataset([path], sequence_length=3, stride=5, every=2, **common)
    assert len(strided) == -(-(len(frames) - 10) // 2)
    for i in range(0, len(strided), 3):
        assert np.array_equal(strided[i].numpy(), frames[2 * i : 2 * i + 11 : 5])
    for fps in (6.0, 10.0, 60.0):
        paced = VideoDataset([path], sequence_length=5, fps=fps, **common)
        for i in range(0, len(paced), 7):
            # What a player shows: the last frame that has begun.
            wanted = times_s[i] + np.arange(5) / fps
            shown = [max(k for k in range(len(frames)) if times_s[k] <= t + 1e-6) for t in wanted]
            assert np.array_equal(paced[i].numpy(), frames[shown]), (fps, i)
        assert times_s[len(paced) - 1] + 4 / fps <= times_s[-1] + 1e-6
        assert times_s[len(paced)] + 4 / fps > times_s[-1]


def test_a_window_by_its_time(two: list[Path]) -> None:
    frames, times_s = reference(two[1])
    dataset = VideoDataset(two, sequence_length=3, every=9, dtype=torch.uint8)
    for start_s, first in ((0.0, 0), (times_s[11], 11), ((times_s[2] + times_s[3]) / 2, 2)):
        window = dataset.read_at(1, start_s)
        assert np.array_equal(window.pixels.numpy(), frames[first : first + 3])
        assert window.times_s[0] == pytest.approx(times_s[first])
        assert window.file == str(two[1])
    for start_s in (-0.1, times_s[-2], 99.0):
        with pytest.raises(IndexError, match="no whole window at"):
            dataset.read_at(1, start_s)


def test_types_layouts_and_normalisation(two: list[Path]) -> None:
    base: dict[str, Any] = dict(sequence_length=2)
    pixels = VideoDataset(two, dtype=torch.uint8, layout="thwc", **base)[7]
    assert pixels.shape == (2, 48, 64, 3)
    for layout, axes in {"tchw": (0, 3, 1, 2), "cthw": (3, 0, 1, 2)}.items():
        given = VideoDataset(two, dtype=torch.uint8, layout=layout, **base)[7]
        assert torch.equal(given, pixels.permute(axes))
        assert given.is_contiguous()
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)
    given = VideoDataset(two, mean=mean, std=std, layout="thwc", **base)[7]
    assert given.dtype == torch.float32
    expected = (pixels / 255 - torch.tensor(mean)) / torch.tensor(std)
    assert torch.allclose(given, expected, atol=1e-6)
    half = VideoDataset(two, mean=mean, std=std, dtype=torch.float16, layout="thwc", **base)[7]
    assert torch.equal(half, expected.half())


def test_scale_crop_and_flip(two: list[Path]) -> None:
    common: dict[str, Any] = dict(sequence_length=2, dtype=torch.uint8, layout="thwc")
    frames, _ = reference(two[0])
    centre = VideoDataset(two, crop=(20, 10), crop_at="center", **common)
    assert np.array_equal(centre[5].numpy(), frames[5:7, 19:29, 22:42])
    flipped = VideoDataset(two, crop=(20, 10), crop_at="center", flip=1.0, **common)
    assert torch.equal(flipped[5], centre[5].flip(2))
    assert VideoDataset(two, scale=24, **common)[0].shape == (2, 24, 32, 3)
    assert VideoDataset(two, scale=(40, 30), crop=(8, 8), **common)[0].shape == (2, 8, 8, 3)

    random = VideoDataset(two, crop=(20, 10), flip=0.5, seed=3, **common)
    placed = set()
    for epoch, index in itertools.product(range(4), range(0, len(random), 9)):
        window = random.read(index, epoch=epoch)
        assert torch.equal(window.pixels, random.read(index, epoch=epoch).pixels)
        file = two.index(Path(window.file))
        whole, times_s = reference(two[file])
        first = int(np.argmin(np.abs(times_s - float(window.times_s[0]))))
        hits = [
            (left, top, flip)
            for flip in (False, True)
            for left in range(45)
            for top in range(39)
            if np.array_equal(
                window.pixels.numpy()[:, :, :: -1 if flip else 1],
                whole[first : first + 2, top : top + 10, left : left + 20],
            )
        ]
        assert hits, "the crop is a part of the frame, the same in all frames of the window"
        placed.add(hits[0])
    assert len(placed) > 20
    assert {flip for _, _, flip in placed} == {False, True}


def test_few_files_stay_open(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{i}.mp4", num_frames=6) for i in range(6)]
    data = VideoDataset(files, sequence_length=2, max_open_files=2, dtype=torch.uint8)
    handles = Path("/proc/self/fd")
    before = len(list(handles.iterdir())) if handles.exists() else 0
    whole = run(VideoLoader(data, 5, True, num_threads=3), 2)
    assert data._pool.num_idle <= 2
    if handles.exists():
        assert len(list(handles.iterdir())) <= before + 2
    other = copy.deepcopy(data)
    assert same(run(VideoLoader(other, 5, True), 2), whole)
    data.close()
    assert data._pool.num_idle == 0
    assert torch.equal(data[0], other[0])


def test_torchs_own_loader_takes_the_dataset(two: list[Path]) -> None:
    data = dataset(two)
    batches = list(torch.utils.data.DataLoader(data, batch_size=4, num_workers=2))
    assert torch.equal(torch.cat(batches), torch.stack([data[i] for i in range(len(data))]))


def test_damage_is_told_by_file_and_time(tmp_path: Path) -> None:
    path = write(tmp_path / "x.mp4", num_frames=60, options={"g": "10", "bf": "0"})
    good, _ = reference(path)
    data = VideoDataset([path], sequence_length=2, dtype=torch.uint8, layout="thwc")
    with IndexedVideo(path) as video, av.open(str(path)) as container:
        packets = [p for p in container.demux(video=0) if p.size]
        assert video.table.keyframes.tolist() == [0, 10, 20, 30, 40, 50]
    content = bytearray(path.read_bytes())
    position, size = packets[30].pos, packets[30].size
    assert position is not None
    content[position : position + size] = bytes(size)
    path.write_bytes(content)
    assert np.array_equal(data[5].numpy(), good[5:7])
    assert np.array_equal(data[50].numpy(), good[50:52])
    with pytest.raises(MediaError, match=r"x\.mp4: not all frames from 1\.200 s on decode"):
        data[30]
    # Frames 30 to 39 are lost, so windows 29 to 39; what comes for each is 1, 2, 4, ... after it.
    first = VideoLoader(data, 4, num_threads=3)
    given = run(first)
    lost = [i for i in range(len(data)) if f"{path}: window {i}" in first.skipped]
    assert lost
    assert set(lost) <= set(range(29, 40))
    assert all("not all frames" in why for why in first.skipped.values())

    def substitute(i: int) -> int:
        places = [i, *((i + (1 << k)) % len(data) for k in range(9))]
        return next(place for place in places if place not in lost)

    indices = [i for places, _ in given for i in places]
    assert indices == [substitute(i) for i in range(len(data))]
    for places, windows in given:
        for frames, i in zip(windows, places, strict=True):
            assert np.array_equal(frames.numpy(), good[i : i + 2])
    shares = [run(VideoLoader(data, 4, rank=r, num_ranks=2)) for r in range(2)]
    assert same([batch for turn in zip(*shares, strict=False) for batch in turn], given[:14])
    resumed = VideoLoader(data, 4)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert resumed.skipped == first.skipped
    with pytest.raises(DataError, match=r"more than max_bad_windows \(2\): .*x\.mp4: window"):
        run(VideoLoader(data, 4, max_bad_windows=2))


WRONG: list[tuple[dict[str, Any], str]] = [
    (dict(sequence_length=0), "sequence_length is 0, must be at least 1"),
    (dict(fps=-1.0), "fps is -1.0, must be above 0"),
    (dict(fps=8.0, stride=2), "give one of them"),
    (dict(color="bgr"), "color is bgr, must be one of rgb, ycbcr"),
    (dict(dtype=torch.int64), "dtype is torch.int64"),
    (dict(flip=2.0), "flip is 2.0"),
    (dict(crop=(99, 99)), "crop 99x99 is larger than .*bframes.mp4, which is 64x48"),
    (dict(scale=0), "at least 1 pixel"),
    (dict(mean=(0.0, 0.0, 0.0), dtype=torch.uint8), "need dtype"),
    (dict(std=(0.0, 1.0, 1.0)), "std is .*, must be above 0"),
    (dict(max_open_files=0), "max_open_files=0"),
]


@pytest.mark.parametrize(("changes", "says"), WRONG)
def test_impossible_options_are_refused(
    changes: dict[str, Any], says: str, two: list[Path]
) -> None:
    with pytest.raises(ConfigError, match=says):
        VideoDataset(two, **changes)


def test_files_that_cannot_serve_are_named(two: list[Path], tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("hello")
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: VideoDataset([]), ConfigError, "files is empty"),
        (
            lambda: VideoDataset([*two, tmp_path / "text.mp4", tmp_path / "none.mp4"]),
            DataError,
            r"2 of 4 files cannot be read: not_a_video: .*text.mp4.*; missing: .*none.mp4",
        ),
        (
            lambda: VideoDataset([*two, write(tmp_path / "big.mp4", size=(80, 48), num_frames=9)]),
            ConfigError,
            r"bframes.mp4 gives windows of 64x48 and .*big.mp4 of 80x48: set scale",
        ),
        (lambda: VideoDataset(two, 500), DataError, "the longest has 70 frames"),
        (lambda: VideoLoader(dataset(two), 0), ConfigError, "batch_size is 0"),
        (lambda: VideoLoader(dataset(two), rank=2, num_ranks=2), ConfigError, "rank is 2"),
        (lambda: VideoLoader(dataset(two), 999, drop_last=True), ConfigError, "is more than the"),
    ]
    for act, kind, says in cases:
        with pytest.raises(kind, match=says):
            act()
    with pytest.raises(IndexError):
        dataset(two)[10_000]


@pytest.mark.skipif(not (FOOTAGE / "raw").is_dir(), reason=f"no footage in {FOOTAGE}")
@pytest.mark.parametrize("name", ["vfr.mp4", "rotated90.mp4", "anamorphic.mp4"])
def test_real_footage_agrees_with_the_projects_own_reader(name: str) -> None:
    from common.media import read_frames

    path = FOOTAGE / "raw" / name
    data = VideoDataset([path], sequence_length=6, scale=90, dtype=torch.uint8, layout="thwc")
    begin_s, end_s = data.tables[0].times_s[[40, 46]]
    size = data.size
    frames = list(read_frames(path, start_s=begin_s, end_s=end_s, size=size))
    window = data.read_at(0, float(begin_s))
    assert window.times_s.numpy() == pytest.approx([f.pts_s for f in frames], abs=1e-6)
    assert np.array_equal(window.pixels.numpy(), np.stack([f.rgb for f in frames]))
