"""`vfm data index`: makes any folder of WebDataset tars one that opens at once."""

from collections.abc import Callable
from dataclasses import dataclass, field

from common.store_path import Place
from dataloading.folder import open_folder
from dataloading.parts import scan, write_parts


@dataclass(kw_only=True)
class Indexed:
    """What was found."""

    num_shards: int
    num_samples: int
    faults: list[str] = field(default_factory=list)
    """What is wrong with shards, in sentences; what lies before the damage is in the index."""


def index_folder(path: Place, tick: Callable[[], None] = lambda: None) -> Indexed:
    """Writes the indexes beside the tars. `tick` is called for each shard.

    Raises `DataError` where `path` holds no shards.
    """
    folder = open_folder(path)
    samples, faults = scan(folder, tick)
    write_parts(folder, samples)
    return Indexed(
        num_shards=len(folder.shards),
        num_samples=sum(map(len, samples.values())),
        faults=faults,
    )
