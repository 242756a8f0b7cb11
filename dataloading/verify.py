"""Re-reads a whole folder of shards and names every defect.

Shards are checked one by one (`dataloading.verify_shard`: bytes, tar, index), then the clips of
each (`dataloading.verify_clip`: pictures, texts), all of it over threads: hashing and decoding let
other threads run.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from dataloading.defects import Defect
from dataloading.folder import ShardFolder, tars_below
from dataloading.verify_clip import ClipJob, check_clip
from dataloading.verify_shard import Records, ShardCheck, check_shard

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What one step found, of a shard or of a clip."""

    defects: list[Defect]
    shard_bytes: int = 0
    is_shard: bool = False
    is_clip: bool = False


def verify(folder: ShardFolder, *, num_threads: int) -> Iterator[Checked]:
    """Checks everything, in an order that depends on the folder only; no defect ends it."""
    named = set(folder.shards)
    stray = [p for p in tars_below(folder.root) if p not in named]
    by = "the manifest" if folder.kind == "curated" else ".nv-meta"
    yield Checked(
        defects=[
            Defect(shard=p, what="unlisted_shard", value=f"{by} does not name it") for p in stray
        ]
    )
    records = Records.of(folder)
    owner: dict[str, str] = {}
    found: deque[Checked] = deque()

    def jobs() -> Iterator[ClipJob]:
        """All clips, while the shards' own findings go to `found`."""
        for result in _in_order(pool, lambda s: check_shard(folder, records, s), folder.shards):
            twice = _repeated(result, owner) if folder.kind == "curated" else []
            found.append(
                Checked(
                    defects=[*result.defects, *twice],
                    shard_bytes=result.num_bytes,
                    is_shard=True,
                )
            )
            yield from result.jobs

    with ThreadPoolExecutor(num_threads, thread_name_prefix="verify") as pool:
        try:
            for defects in _in_order(pool, lambda job: check_clip(folder.root, job), jobs()):
                while found:
                    yield found.popleft()
                yield Checked(defects=defects, is_clip=True)
            yield from found
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _repeated(result: ShardCheck, owner: dict[str, str]) -> list[Defect]:
    """Clips that an earlier shard holds too: they would be one sample to every random draw."""
    defects = []
    for job in result.jobs:
        first = owner.setdefault(job.key, job.shard)
        if first != job.shard:
            defects.append(
                Defect(
                    shard=job.shard,
                    member=job.key,
                    what="repeated_clip",
                    value=f"{first} holds a clip of this id too",
                )
            )
    return defects


def _in_order(
    pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T], *, ahead: int = 64
) -> Iterator[R]:
    """Results in the order of the items, of which only so many are taken ahead."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
