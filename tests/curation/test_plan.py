"""`vfm curate plan`: what is reckoned from a sample, and a real probe (one process; no GPU)."""

from pathlib import Path

import numpy as np
import pytest

from common.errors import ConfigError, VfmError
from curation.plan import PlanConfig, Probe, plan_curation, reckon, spread, told
from curation.sources import SourceFile
from tests.curation import footage

SEEN = Probe(
    num_bytes=10**9,
    num_videos=10,
    video_s=3600.0,
    num_clips=600,
    out_bytes=2 * 10**8,
    stage_s={"ingest": 1.0, "analyse": 360.0, "transcode": 720.0},
    peak_bytes=2**30,
)


def test_work_is_spread_over_the_cluster() -> None:
    config = PlanConfig(input="x", nodes=4, cpus=64, gpus=8, caption_s=1.0)
    made = reckon(config, SEEN, num_bytes=10**12)
    by_name = {stage.stage: stage for stage in made.stages}
    assert by_name["analyse"].workers == 4 * 32
    assert by_name["analyse"].wall_s == pytest.approx(360_000 / 128)
    assert by_name["caption"].workers == 32
    assert by_name["caption"].wall_s == pytest.approx(600_000 / 32)
    assert made.wall_s == pytest.approx(sum(s.wall_s for s in made.stages))
    assert (made.video_s, made.out_bytes) == (3.6e6, 2e11)
    assert made.drivers == 1


def test_memory_limits_the_workers_of_a_node() -> None:
    config = PlanConfig(input="x", cpus=64, memory_gib=8)
    made = reckon(config, SEEN, num_bytes=10**12)
    assert made.workers_per_node == 8
    small = PlanConfig(input="x", cpus=64, memory_gib=0.5)
    with pytest.raises(ConfigError, match="fits on no node: it needs 1 CPUs, 1.0 GiB"):
        reckon(small, SEEN, num_bytes=10**12)


def test_petabytes_on_thousands_of_gpus_take_several_drivers() -> None:
    """1 s of a GPU per 6 s clip and 2,000 GPUs: an hour of video takes each of them 600 s."""
    config = PlanConfig(input="x", total_tib=102400, nodes=250, cpus=224, gpus=8, caption_s=1.0)
    made = reckon(config, SEEN, num_bytes=1)
    assert made.num_bytes == 102400 * 2**40
    caption = made.stages[-1]
    assert caption.workers == 2000
    assert caption.wall_s * 2000 / (made.video_s / 3600) == pytest.approx(600.0)
    assert made.drivers == 4


def test_the_sample_spans_the_sizes() -> None:
    files = [SourceFile(source=f"{n}", path=f"{n}") for n in range(10)]
    sizes = {f"{n}": (n * 7) % 10 for n in range(10)}
    assert [sizes[f.path] for f in spread(files, sizes, 5)] == [1, 3, 5, 7, 9]
    assert len(spread(files, sizes, 99)) == 10


def test_a_real_probe(tmp_path: Path) -> None:
    for number in range(3):
        shots = [footage.shot(10 * number + k, 25) for k in range(2)]
        footage.write(tmp_path / "in" / f"{number}.mp4", np.concatenate(shots))
    made = plan_curation(PlanConfig(input=str(tmp_path / "in"), sample=2, total_tib=1.0))
    assert {stage.stage for stage in made.stages} == {"ingest", "analyse", "transcode"}
    assert made.wall_s > 0
    assert made.out_bytes > 0
    assert 2**26 < made.peak_bytes < 2**32
    assert not (tmp_path / "in" / "out").exists()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.mp4").write_bytes(b"no video")
    with pytest.raises(VfmError, match="none of the sampled videos can be used"):
        plan_curation(PlanConfig(input=str(tmp_path / "bad")))


def test_times_are_told_in_their_unit() -> None:
    assert [told(s) for s in (0.5, 80, 100, 7200, 864000)] == [
        "0.5 s",
        "80 s",
        "1.67 min",
        "2 h",
        "10 days",
    ]
