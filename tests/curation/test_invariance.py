"""Motion is that of the scene: the same in any codec, at half the size and half the frame rate.

One process, no network. The part on real footage is skipped where there is none.
"""

from pathlib import Path

import numpy as np
import pytest

from common.media import read_frames
from curation.config import AnalysisConfig, CurateConfig
from curation.sources import SourceFile, video_id_of
from curation.stages.analyse import Analyse, Analysis
from tests.curation import footage

CODECS = {
    "libx264": {"crf": "23", "preset": "veryfast"},
    "libx265": {"crf": "26", "preset": "ultrafast", "x265-params": "log-level=none"},
    "libvpx-vp9": {"crf": "32", "b": "0", "deadline": "realtime", "cpu-used": "8"},
    "libsvtav1": {"crf": "35", "preset": "12"},
}


def _motion(path: Path, scratch: Path) -> float:
    config = CurateConfig(input="", output="", max_clip_s=60.0, analysis=AnalysisConfig(text=False))
    item = SourceFile(source=path.name, path=str(path), content_id=video_id_of(path))
    (analysis,) = Analyse(config, scratch).process(item)
    assert isinstance(analysis, Analysis)
    longest = max(analysis.clips, key=lambda clip: clip.end_us - clip.start_us)
    score = longest.scores["motion"]
    assert score.valid
    return score.value


def _forms(frames: np.ndarray, fps: int, scratch: Path) -> dict[str, float]:
    height, width = (n // 4 * 4 for n in frames.shape[1:3])
    frames = frames[:, :height, :width]
    halved = frames.reshape(len(frames), height // 2, 2, width // 2, 2, 3).mean((2, 4))
    found = {}
    for codec, options in CODECS.items():
        path = footage.write(
            scratch / f"{codec}.mkv", frames, fps=fps, codec=codec, options=options
        )
        found[codec] = _motion(path, scratch)
    usual = CODECS["libx264"]
    small = footage.write(scratch / "small.mp4", halved.astype(np.uint8), fps=fps, options=usual)
    slow = footage.write(scratch / "slow.mp4", frames[::2], fps=fps // 2, options=usual)
    return found | {"half size": _motion(small, scratch), "half rate": _motion(slow, scratch)}


def test_of_a_scene_made_here(tmp_path: Path) -> None:
    frames = footage.shot(3, 60, size=(640, 360), step_px=4.0)
    found = _forms(frames, 30, tmp_path)
    usual = found["libx264"]
    assert usual > 0.05
    assert found == {name: pytest.approx(usual, rel=0.1) for name in found}


def test_of_real_footage(tmp_path: Path) -> None:
    path = footage.real_footage("clips") / "8CwuRmhm_PA.2.mp4"
    frames = np.stack([frame.rgb for frame in read_frames(path, end_s=2.0)])
    found = _forms(frames, 30, tmp_path)
    usual = found["libx264"]
    assert usual > 0.02
    assert found == {name: pytest.approx(usual, rel=0.1) for name in found}
