"""The executor that a configuration asks for."""

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path

from curation.config import CurateConfig
from curation.executors.local import LocalExecutor
from curation.pipeline import Executor


def executor_of(config: CurateConfig, output: Path) -> AbstractContextManager[Executor]:
    """Holds what it needs, such as a cluster, until it is left."""
    if config.executor == "local":
        return contextlib.nullcontext(LocalExecutor())
    from curation.executors.ray import RayExecutor  # half a second, for those who want it

    return RayExecutor(config.ray, series=output / "report" / "engine.jsonl")
