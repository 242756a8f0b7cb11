"""The analysis streams: of a video ten times as long, memory holds no more pictures and no more of
frames' numbers, only its clips. Processes of their own, since a peak belongs to a whole process; no
network, no GPU.
"""

import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from common.media import probe
from tests.curation import footage

_FPS = 5
_SHOT_S = 5
_NUM_SHOTS = 40
_TIMES = 10
_MOST_BYTES_PER_S = 4_000
"""Of footage. What is left is that of the clips, of which there is one in five seconds, and the
allocator's part: see the figure that fails."""

_SCRIPT = """
import re, sys
from pathlib import Path
from curation.config import CurateConfig
from curation.sources import SourceFile, video_id_of
from curation.stages.analyse import Analyse

def peak(path):
    # That of getrusage would begin with the peak of whoever started this process.
    Path("/proc/self/clear_refs").write_text("5")
    item = SourceFile(source=path, path=path, content_id=video_id_of(Path(path)))
    (analysis,) = stage.process(item)
    kept = sum(clip.end_us - clip.start_us for clip in analysis.clips)
    (kib,) = re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    return int(kib), kept / 1e6

stage = Analyse(CurateConfig(input="", output=""), Path(sys.argv[2]))
print(*peak(sys.argv[1]))
"""


def _repeated(source: Path, target: Path, times: int) -> None:
    """The packets of a file so many times after each other."""
    with av.open(str(target), "w") as out:
        stream = None
        shift = 0
        for _ in range(times):
            with av.open(str(source)) as container:
                video = container.streams.video[0]
                stream = stream or out.add_stream_from_template(video)
                end = 0
                for packet in container.demux(video):
                    if packet.pts is None or packet.dts is None:
                        continue
                    end = max(end, packet.pts + (packet.duration or 0))
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = stream
                    out.mux(packet)
                shift += end


def _peak(path: Path, folder: Path) -> tuple[float, float]:
    """Of a process that analyses a file, in KiB, and the seconds of its clips."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(path), str(folder / "thumbs")],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kib, clips_s = map(float, done.stdout.split())
    return kib, clips_s


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from Linux's /proc")
def test_memory_grows_by_clips_alone(tmp_path: Path) -> None:
    """The short one is longer than every window of the analysis, a minute at most. One reduced
    picture a second would be 170,000 bytes."""
    shots = [footage.shot(seed, _SHOT_S * _FPS) for seed in range(_NUM_SHOTS)]
    short, long = tmp_path / "short.mp4", tmp_path / "long.mp4"
    footage.write(short, np.concatenate(shots), fps=_FPS)
    _repeated(short, long, _TIMES)
    short_s = _SHOT_S * _NUM_SHOTS
    assert probe(long).duration_s == short_s * _TIMES
    before, clips_s = _peak(short, tmp_path)
    after, long_clips_s = _peak(long, tmp_path)
    assert clips_s > 0.9 * short_s and long_clips_s > 0.9 * short_s * _TIMES
    added_s = short_s * (_TIMES - 1)
    growth = (after - before) * 1024 / added_s
    print(f"{before / 1024:.1f} MiB, {after / 1024:.1f} MiB, {growth:.0f} bytes a second")
    assert growth < _MOST_BYTES_PER_S, f"{growth:.0f} bytes for each of {added_s} s more"
