"""The rates of stages and the sentence that names the slowest (wiring only)."""

from curation.summary import bottleneck, stage_rates

CLOCK = {
    "analyse": {"items": 100, "wall_s": 400.0, "seconds": 4000.0},
    "transcode": {"items": 50, "wall_s": 200.0, "seconds": 1000.0},
}


def test_one_worker_each() -> None:
    stages = stage_rates(CLOCK, {})
    assert stages["analyse"]["tasks_per_s"] == 0.25
    assert bottleneck(stages, 600.0) == (
        "The slowest stage is analyse: 67% of the time, 10.0 s of video per second."
    )


def test_pools_are_judged_by_their_time_and_not_by_their_work() -> None:
    stages = stage_rates(CLOCK, {"analyse": 8, "transcode": 2})
    assert bottleneck(stages, 200.0) == (
        "The slowest stage is transcode: 50% of the time, 10.0 s of video per second on 2 workers; "
        "with 4 the whole is 1.3 times as fast."
    )
