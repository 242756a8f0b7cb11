"""The executor that a configuration asks for."""

import contextlib
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from common.store_path import Place, StorePath
from curation.config import CurateConfig, ReshardConfig
from curation.executors.local import LocalExecutor
from curation.pipeline import Executor


def executor_of(
    config: CurateConfig | ReshardConfig, series: Place
) -> AbstractContextManager[Executor]:
    """Holds what it needs, such as a cluster, until it is left; an engine writes `series`."""
    if config.executor == "local":
        return contextlib.nullcontext(LocalExecutor())
    from curation.executors.ray import RayExecutor  # half a second, for those who want it

    if isinstance(series, Path):
        return RayExecutor(config.ray, series=series)
    return _series_sent(config, series)


@contextlib.contextmanager
def _series_sent(config: CurateConfig | ReshardConfig, series: StorePath) -> Iterator[Executor]:
    """Ray's executor for an output in a store, where the series is sent once it is complete."""
    from curation.executors.ray import RayExecutor

    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder, series.name)
        with RayExecutor(config.ray, series=local) as executor:
            yield executor
        if local.is_file():
            series.upload(local)
