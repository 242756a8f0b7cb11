"""Which samples go into the next pack: a pool with an age bound, filled longest first.

A pack begins with one sample, the seed: the longest, since long ones are hardest to place, unless
that could break the age bound; then the oldest. The rest of the budget is filled longest first,
and where that would waste more than 2% of the budget, by the subset of the pool that fills it best
(exactly, by dynamic programming over bits). Always taking the best subset fills each pack better
and the stream worse: it uses up the short samples that make long ones fit.
"""

from math import gcd

_WASTE = 0.02


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
        chosen = _best_subset(rest, lengths, room)
    return sorted([seed, *chosen])


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

    `reached[j]` has bit s set if some subset of the last j candidates sums to s. Walking from the
    first candidate and taking whenever possible prefers the earlier.
    """
    if not candidates:
        return []
    unit = gcd(*(lengths[i] for i in candidates))
    room //= unit
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
