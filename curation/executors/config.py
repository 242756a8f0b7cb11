"""Settings of the executors; importing them imports no Ray."""

from dataclasses import dataclass, field

from curation.limits import need

STAGES = ("ingest", "analyse", "transcode")


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """The Ray cluster that a run uses."""

    address: str | None = None
    """Of a cluster that is there: auto, or HOST:PORT. null starts one on this machine."""
    num_cpus: int | None = None
    """Of a cluster that is started here; null counts them."""
    num_gpus: int | None = None
    object_store_mib: int | None = None
    """Memory for what waits between stages, likewise."""
    exclude_head: bool = False
    """Keeps workers off the head node."""
    workers: dict[str, int] = field(default_factory=dict)
    """A fixed number of workers for a stage, such as `{analyse: 8}`; the others are balanced."""
    headroom: float = 1.25
    """How much faster than needed stages without GPUs may be, where processors are spare."""

    def __post_init__(self) -> None:
        cpus, gpus, store = self.num_cpus, self.num_gpus, self.object_store_mib
        need(cpus is None or cpus >= 1, "ray.num_cpus", cpus, "at least 1")
        need(gpus is None or gpus >= 0, "ray.num_gpus", gpus, "not negative")
        need(store is None or store >= 80, "ray.object_store_mib", store, "at least 80")
        for stage, count in self.workers.items():
            need(stage in STAGES, "ray.workers", stage, f"stages are {', '.join(STAGES)}")
            need(count >= 1, f"ray.workers.{stage}", count, "at least 1")
        need(1 <= self.headroom <= 100, "ray.headroom", self.headroom, "1 to 100")
