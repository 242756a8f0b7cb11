"""The series of a run as gauges that Ray exports to Prometheus."""

from collections.abc import Mapping
from pathlib import Path

import ray
from ray.util.metrics import Gauge

from curation.engine.pool import Pool
from curation.engine.sight import Sight

_GAUGES = {
    "vfm_queue": "items that wait for a stage",
    "vfm_queue_bytes": "bytes of the items that wait for a stage",
    "vfm_workers": "workers of a stage, by state",
    "vfm_done": "items that a stage has done",
    "vfm_failed": "items that failed in a stage",
    "vfm_gpus_busy": "of the GPUs that workers hold, the share at work",
    "vfm_left": "seconds until the run is done",
}


class GaugedSight(Sight):
    """Also tells Ray, so that a dashboard shows it. Samples before Ray is there are kept only."""

    def __init__(self, path: Path | None = None, *, began_s: float | None = None) -> None:
        super().__init__(path, began_s=began_s)
        self._gauges: dict[str, Gauge] = {}

    def sample(
        self,
        now_s: float,
        pools: Mapping[str, Pool],
        left: Mapping[str, float],
        left_s: float | None,
    ) -> None:
        super().sample(now_s, pools, left, left_s)
        if not ray.is_initialized():
            return
        if not self._gauges:
            self._gauges = {
                name: Gauge(name, description=told, tag_keys=("stage", "state"))
                for name, told in _GAUGES.items()
            }
        line = self.samples[-1]
        for name, value in (("vfm_gpus_busy", line["gpus_busy"]), ("vfm_left", line["left_s"])):
            if value is not None:
                self._gauges[name].set(value, tags={"stage": "", "state": ""})
        for step, seen in line["steps"].items():
            tags = {"stage": step, "state": ""}
            self._gauges["vfm_queue"].set(seen["queue"], tags=tags)
            self._gauges["vfm_queue_bytes"].set(seen["queue_bytes"], tags=tags)
            self._gauges["vfm_done"].set(seen["done"], tags=tags)
            self._gauges["vfm_failed"].set(seen["failed"], tags=tags)
            for state in ("starting", "busy", "waiting", "draining"):
                self._gauges["vfm_workers"].set(seen[state], tags={"stage": step, "state": state})
