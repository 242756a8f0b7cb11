"""How full packs are and how even their cost, with the loader's own choice and with others'."""

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from benchmarks.row import Row
from common.errors import DataError
from dataloading.packing import choose, compute_cost, cost_order

HELP = """
how full packs are and how evenly they cost, ours and those of others' algorithms

The loader's rolling pool, in windows ordered by cost, against one sample a batch, bucketing
(lengths between powers of two together, padded to the longest of the batch), next-fit (packing as
samples arrive), and first-fit-decreasing, best-fit-decreasing and greedy knapsack on disjoint
buffers. The file holds {case: {"budget": int, "lengths": [int, ...]}}; without one, three cases are
drawn from the seed.

fill     tokens over packs times budget, the last, unfull packs included
oldest   packs that a sample waited at most, from when it could have gone
uneven   cost of the costliest of `ranks` packs of a step over their mean, over all steps; linear
         and quadratic in length, as of a transformer of the hidden size
worst    the same of the worst window of `window` packs
total    cost of the rank with most in a window over the mean of ranks, in the worst window
plan     processor time of planning

examples:
  vfm bench packing
  vfm bench packing lengths=pack_lengths.json pools=[128]
  vfm bench packing seed=7
"""

Lengths = list[int]
Packs = list[Lengths]


@dataclass(kw_only=True)
class Settings:
    lengths: str | None = None
    """A file of lengths; none for the drawn cases."""
    seed: int = 0
    num_samples: int = 8192
    pools: list[int] = field(default_factory=lambda: [32, 128, 256])
    buffers: list[int] = field(default_factory=lambda: [128, 1024])
    ranks: int = 8
    window: int = 64
    hidden_size: int = 4096


class Packed(NamedTuple):
    packs: Packs
    oldest: int = 0
    padded: bool = False
    """Whether samples of a pack are padded to its longest."""


def measure(settings: Settings) -> Iterator[Row]:
    """A row for each case, way of packing and metric."""
    if settings.lengths is None:
        cases = drawn_cases(settings.seed, settings.num_samples)
    else:
        cases = read_cases(settings.lengths)
    for case, (budget, lengths) in cases.items():
        for subject, pack in subjects(settings).items():
            begin = time.process_time()
            packed = pack(lengths, budget)
            micros = (time.process_time() - begin) / len(lengths) * 1e6
            uneven = unevenness(packed, settings)
            for metric, value, unit in (
                ("fill", sum(lengths) / (len(packed.packs) * budget), "1"),
                ("oldest", packed.oldest, "packs"),
                *zip(("uneven", "worst", "total"), uneven or (), ("1",) * 3, strict=False),
                ("plan", micros, "us/sample"),
            ):
                yield Row(
                    benchmark="packing",
                    case=case,
                    subject=subject,
                    metric=metric,
                    value=value,
                    unit=unit,
                )


def subjects(settings: Settings) -> dict[str, Callable[[Lengths, int], Packed]]:
    made: dict[str, Callable[[Lengths, int], Packed]] = {
        "one sample a batch": lambda lengths, budget: Packed([[n] for n in lengths]),
        "bucketing": bucketing,
        "next-fit": next_fit,
    }
    for buffer in settings.buffers:
        for name, solve in (
            ("first-fit-decreasing", first_fit_decreasing),
            ("best-fit-decreasing", best_fit_decreasing),
            ("greedy knapsack", greedy_knapsack),
        ):
            made[f"{name}, buffers of {buffer}"] = partial(buffered, solve, buffer)
    for pool in settings.pools:
        named = f"vfm, pool of {pool}, age {2 * pool}"
        made[named] = partial(rolling, pool, 2 * pool, settings.window)
    return made


def unevenness(packed: Packed, settings: Settings) -> tuple[float, float, float] | None:
    """See `HELP`; of whole windows, or of all whole steps where there are fewer packs; none where
    there is not one step."""
    ranks, num_packs = settings.ranks, len(packed.packs)
    width = settings.window if num_packs >= settings.window else num_packs // ranks * ranks
    costs = [
        compute_cost([max(p)] * len(p) if packed.padded else p, settings.hidden_size)
        for p in packed.packs
    ]
    slowest = mean = worst = total = 0.0
    for first in range(0, num_packs - width + 1, width or 1):
        window = costs[first : first + width]
        if len(window) < ranks:
            break
        highest = sum(max(window[i : i + ranks]) for i in range(0, width, ranks))
        of_rank = [sum(window[rank::ranks]) for rank in range(ranks)]
        slowest, mean = slowest + highest, mean + sum(window) / ranks
        worst = max(worst, highest * ranks / sum(window))
        total = max(total, max(of_rank) * ranks / sum(window))
    return (slowest / mean, worst, total) if mean else None


def read_cases(name: str) -> dict[str, tuple[int, Lengths]]:
    """Raises `DataError` where the file is not as `HELP` says."""
    try:
        raw = json.loads(Path(name).read_text(encoding="utf-8"))
        return {
            case: (int(of["budget"]), [int(n) for n in of["lengths"]]) for case, of in raw.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"lengths={name} cannot be read ({error!r}); see the help") from error


def drawn_cases(seed: int, num_samples: int) -> dict[str, tuple[int, Lengths]]:
    """A mix of windows and images; lengths spread over decades; and the worst case, uniform."""
    rnd = random.Random(seed)
    shapes = [(w, h) for w in (16, 24, 32, 40, 52) for h in (12, 16, 22, 30)]
    frames = [1, 1, 3, 5, 9, 13, 17]
    video = [math.prod(rnd.choice(shapes)) * rnd.choice(frames) for _ in range(num_samples)]
    spread = [min(8192, max(1, int(rnd.lognormvariate(6, 1)))) for _ in range(num_samples)]
    return {
        "video": (32768, [min(length, 32768) for length in video]),
        "lognormal": (8192, spread),
        "uniform": (4096, [rnd.randint(64, 4096) for _ in range(num_samples)]),
    }


def rolling(pool_size: int, max_age: int, window: int, lengths: Lengths, budget: int) -> Packed:
    """With the loader's own choice and order."""
    pool: list[tuple[int, int]] = []
    packs: Packs = []
    waiting = iter(lengths)
    oldest = 0
    while True:
        pool += [(length, len(packs)) for length in islice(waiting, pool_size - len(pool))]
        if not pool:
            break
        slack = [entered + max_age - len(packs) for _, entered in pool]
        chosen = choose([length for length, _ in pool], slack, budget)
        oldest = max(oldest, *(len(packs) - pool[i][1] for i in chosen))
        packs.append([pool[i][0] for i in chosen])
        taken = set(chosen)
        pool = [entry for i, entry in enumerate(pool) if i not in taken]
    ordered: Packs = []
    for number, first in enumerate(range(0, len(packs), window)):
        some = packs[first : first + window]
        ordered += [some[i] for i in cost_order(some, descending=number % 2 == 1)]
    return Packed(ordered, oldest)


def bucketing(lengths: Lengths, budget: int) -> Packed:
    buckets: dict[int, Lengths] = {}
    packs: Packs = []
    for length in lengths:
        bound = min(budget, 1 << (length - 1).bit_length())
        bucket = buckets.setdefault(bound, [])
        bucket.append(length)
        if len(bucket) == budget // bound:
            packs.append(buckets.pop(bound))
    return Packed([*packs, *buckets.values()], padded=True)


def next_fit(lengths: Lengths, budget: int) -> Packed:
    packs: Packs = [[]]
    used = 0
    for length in lengths:
        if used + length > budget:
            packs.append([])
            used = 0
        packs[-1].append(length)
        used += length
    return Packed(packs)


def buffered(
    solve: Callable[[Lengths, int], Packs], buffer: int, lengths: Lengths, budget: int
) -> Packed:
    """Each buffer of samples packed by itself, longest first."""
    packs: Packs = []
    for first in range(0, len(lengths), buffer):
        packs += solve(sorted(lengths[first : first + buffer], reverse=True), budget)
    return Packed(packs)


def first_fit_decreasing(lengths: Lengths, budget: int) -> Packs:
    packs: Packs = []
    room: Lengths = []
    for length in lengths:
        at = next((i for i, left in enumerate(room) if length <= left), None)
        if at is None:
            packs.append([])
            room.append(budget)
            at = -1
        packs[at].append(length)
        room[at] -= length
    return packs


def best_fit_decreasing(lengths: Lengths, budget: int) -> Packs:
    packs: Packs = []
    room: Lengths = []
    for length in lengths:
        fits = [(left, i) for i, left in enumerate(room) if length <= left]
        if not fits:
            packs.append([])
            room.append(budget)
        at = min(fits)[1] if fits else -1
        packs[at].append(length)
        room[at] -= length
    return packs


def greedy_knapsack(lengths: Lengths, budget: int) -> Packs:
    """One pack after another, each filled with the longest that still fit."""
    packs: Packs = []
    while lengths:
        left, pack, rest = budget, [], []
        for length in lengths:
            if length <= left:
                pack.append(length)
                left -= length
            else:
                rest.append(length)
        packs.append(pack)
        lengths = rest
    return packs
