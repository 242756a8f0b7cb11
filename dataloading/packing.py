"""Which samples go into the next pack: a pool with an age bound, filled longest first.

A pack begins with one sample, the seed: the longest, since long ones are hardest to place, unless
that could break the age bound; then the oldest. The rest of the budget is filled longest first,
and where that would waste more than 2% of the budget, by the subset of the pool that fills it best
(exactly, by dynamic programming over bits). Always taking the best subset fills each pack better
and the stream worse: it uses up the short samples that make long ones fit.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from math import gcd

_WASTE = 0.02
# Memory of the exact choice is candidates times units bits: 64 MiB at most.
_EXACT_CANDIDATES = 512
_EXACT_UNITS = 1 << 20
_HIDDEN_SIZE = 4096


def compute_cost(lengths: Sequence[int], hidden_size: int = _HIDDEN_SIZE) -> int:
    """What a pack costs a transformer block, in units of 4*hidden_size operations.

    A token costs 24*h^2 in the projections and the MLP of width 4*h, and a sample of L tokens
    4*h*L^2 in attention. Packs are about equally full, so the order by cost is nearly that by the
    sum of squares, whatever the hidden size.
    """
    return 6 * hidden_size * sum(lengths) + sum(length * length for length in lengths)


def cost_order(packs: Sequence[Sequence[int]], *, descending: bool) -> list[int]:
    """Positions of packs of these lengths in the order of their cost.

    Neighbours then cost about the same, so the ranks of a step do, however many there are. Windows
    of packs go up and down in turn, so that no rank has the costlier one in every round.
    """
    return sorted(range(len(packs)), key=lambda i: compute_cost(packs[i]), reverse=descending)


def choose(lengths: list[int], slack: list[int], budget: int) -> list[int]:
    """The pool's positions that make the next pack, ascending; never empty for a non-empty pool.

    Args:
        lengths: tokens of each sample in the pool, oldest first; none over `budget`.
        slack: for each, how many packs may still pass before the one that must hold it; ascending.
        budget: tokens of a pack.

    The age bound: position i can always wait for i packs, since each pack can take the oldest. So
    `slack[i] >= i` for all i means that every sample can still go in time. It holds for a new
    sample if the bound is at least the pool's size; taking the oldest keeps it; taking another is
    allowed only if `slack[i] > i` for all i. Hence no sample ever waits longer than its bound.
    """
    if all(s > i for i, s in enumerate(slack)):
        seed = max(range(len(lengths)), key=lambda i: (lengths[i], -i))
    else:
        seed = 0
    room = budget - lengths[seed]
    rest = [i for i in range(len(lengths)) if i != seed and lengths[i] <= room]
    rest.sort(key=lambda i: (-lengths[i], i))
    chosen, left = _longest_first(rest, lengths, room)
    if left > _WASTE * budget:
        better = _best_subset(rest, lengths, room)
        if sum(lengths[i] for i in better) > room - left:
            chosen = better
    return sorted([seed, *chosen])


def choose_alike(
    shapes: list[Hashable], lengths: list[int], slack: list[int], budget: int
) -> list[int]:
    """Like `choose`, for a batch of one shape: the oldest of the shape that has the most tokens
    waiting, unless that could break the age bound; then of the oldest sample's shape.
    """
    if all(s > i for i, s in enumerate(slack)):
        waiting: dict[Hashable, int] = defaultdict(int)
        for shape, length in zip(shapes, lengths, strict=True):
            waiting[shape] += length
        # The first of equals, which holds the oldest sample.
        shape = max(waiting, key=lambda s: min(waiting[s], budget))
    else:
        shape = shapes[0]
    alike = [i for i, other in enumerate(shapes) if other == shape]
    return alike[: max(1, budget // lengths[alike[0]])]


def _longest_first(candidates: list[int], lengths: list[int], room: int) -> tuple[list[int], int]:
    """Takes each candidate that still fits; gives them and the room left."""
    chosen = []
    for i in candidates:
        if lengths[i] <= room:
            chosen.append(i)
            room -= lengths[i]
    return chosen, room


def _best_subset(candidates: list[int], lengths: list[int], room: int) -> list[int]:
    """The candidates whose lengths sum highest without exceeding `room`; where equal, the earlier.

    Of very many candidates, only the last are looked at; of a very large room, none.

    `reached[j]` has bit s set if some subset of the last j candidates sums to s. Walking from the
    first candidate and taking whenever possible prefers the earlier.
    """
    if not candidates:
        return []
    # The shortest are what fills a remainder.
    candidates = candidates[-_EXACT_CANDIDATES:]
    unit = gcd(*(lengths[i] for i in candidates))
    room //= unit
    if room > _EXACT_UNITS:
        return []
    mask = (1 << (room + 1)) - 1
    reached = [1]
    for i in reversed(candidates):
        last = reached[-1]
        reached.append((last | last << (lengths[i] // unit)) & mask)
    total = reached[-1].bit_length() - 1
    chosen = []
    for i, without in zip(candidates, reached[-2::-1], strict=True):
        size = lengths[i] // unit
        if size <= total and without >> (total - size) & 1:
            chosen.append(i)
            total -= size
    return chosen
