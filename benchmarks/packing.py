"""How full packs are, with the loader's own choice and with others."""

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.row import Row
from common.errors import DataError
from dataloading.packing import choose

HELP = """
how full packs are, ours and those of others' algorithms

The loader's rolling pool against no packing, next-fit, and first-fit-decreasing on disjoint
buffers. The file holds {case: {"budget": int, "lengths": [int, ...]}}; without one, three cases are
drawn from fixed seeds. Fill is tokens over packs times budget, the last, unfull packs included.

examples:
  vfm bench packing
  vfm bench packing lengths=pack_lengths.json
"""

Case = tuple[int, list[int]]
NUM_SAMPLES = 8192


@dataclass(kw_only=True)
class Settings:
    lengths: str | None = None
    """A file of lengths; none for the drawn cases."""


def measure(settings: Settings) -> Iterator[Row]:
    """A row for each case, way of packing and metric."""
    cases = drawn_cases() if settings.lengths is None else read_cases(settings.lengths)
    subjects: dict[str, Callable[[int, list[int]], tuple[int, int]]] = {
        "no packing": lambda budget, lengths: (len(lengths), 0),
        "next-fit": lambda budget, lengths: (next_fit(budget, lengths), 0),
    }
    for buffer in (128, 1024):
        subjects[f"first-fit-decreasing, buffers of {buffer}"] = lambda budget, lengths, b=buffer: (
            first_fit_decreasing(budget, lengths, b),
            0,
        )
    for pool in (32, 128, 256):
        subjects[f"vfm, pool of {pool}, age {2 * pool}"] = lambda budget, lengths, p=pool: rolling(
            budget, lengths, p, 2 * p
        )
    for case, (budget, lengths) in cases.items():
        for subject, pack in subjects.items():
            begin = time.perf_counter()
            num_packs, oldest = pack(budget, lengths)
            micros = (time.perf_counter() - begin) / len(lengths) * 1e6
            for metric, value, unit in (
                ("fill", sum(lengths) / (num_packs * budget), "1"),
                ("oldest", oldest, "packs"),
                ("cost", micros, "us/sample"),
            ):
                yield Row(
                    benchmark="packing",
                    case=case,
                    subject=subject,
                    metric=metric,
                    value=value,
                    unit=unit,
                )


def read_cases(name: str) -> dict[str, Case]:
    """Raises `DataError` where the file is not as `HELP` says."""
    try:
        raw = json.loads(Path(name).read_text(encoding="utf-8"))
        return {
            case: (int(of["budget"]), [int(n) for n in of["lengths"]]) for case, of in raw.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"lengths={name} cannot be read ({error!r}); see the help") from error


def drawn_cases() -> dict[str, Case]:
    """A mix of windows and images; lengths spread over decades; and the worst case, uniform."""
    rnd = random.Random(0)
    shapes = [(w, h) for w in (16, 24, 32, 40, 52) for h in (12, 16, 22, 30)]
    frames = [1, 1, 3, 5, 9, 13, 17]
    video = [math.prod(rnd.choice(shapes)) * rnd.choice(frames) for _ in range(NUM_SAMPLES)]
    return {
        "video": (32768, [min(length, 32768) for length in video]),
        "lognormal": (8192, [min(8192, int(rnd.lognormvariate(6, 1))) for _ in range(NUM_SAMPLES)]),
        "uniform": (4096, [rnd.randint(64, 4096) for _ in range(NUM_SAMPLES)]),
    }


def rolling(budget: int, lengths: list[int], pool_size: int, max_age: int) -> tuple[int, int]:
    """Packs, and the longest that a sample waited, with the loader's own choice."""
    pool: list[tuple[int, int]] = []
    waiting = iter(lengths)
    num_packs = oldest = 0
    while True:
        while len(pool) < pool_size and (length := next(waiting, None)) is not None:
            pool.append((length, num_packs))
        if not pool:
            return num_packs, oldest
        slack = [entered + max_age - num_packs for _, entered in pool]
        chosen = set(choose([length for length, _ in pool], slack, budget))
        oldest = max(oldest, *(num_packs - pool[i][1] for i in chosen))
        pool = [entry for i, entry in enumerate(pool) if i not in chosen]
        num_packs += 1


def next_fit(budget: int, lengths: list[int]) -> int:
    num_packs, used = 1, 0
    for length in lengths:
        if used + length > budget:
            num_packs, used = num_packs + 1, 0
        used += length
    return num_packs


def first_fit_decreasing(budget: int, lengths: list[int], buffer: int) -> int:
    num_packs = 0
    for begin in range(0, len(lengths), buffer):
        packs: list[int] = []
        for length in sorted(lengths[begin : begin + buffer], reverse=True):
            fit = next((i for i, used in enumerate(packs) if used + length <= budget), None)
            if fit is None:
                packs.append(length)
            else:
                packs[fit] += length
        num_packs += len(packs)
    return num_packs
