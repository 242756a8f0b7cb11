"""Which samples go into the next pack: a pool with an age bound, filled by subset sum.

A pack begins with one sample, the seed, and takes from the pool the subset that fills the rest of
the budget best (exactly, by dynamic programming over bits). The seed is the longest sample, since
long ones are hardest to place, unless that could break the age bound; then it is the oldest.
"""

from math import gcd


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
    rest = [i for i in range(len(lengths)) if i != seed and lengths[i] <= budget - lengths[seed]]
    return sorted([seed, *_best_subset(rest, lengths, budget - lengths[seed])])


def _best_subset(candidates: list[int], lengths: list[int], room: int) -> list[int]:
    """The candidates whose lengths sum highest without exceeding `room`; older ones where equal.

    `reached[j]` has bit s set if some subset of the first j candidates, youngest first, sums to
    s. Walking back from the oldest and taking whenever possible prefers the old.
    """
    if not candidates:
        return []
    unit = gcd(*(lengths[i] for i in candidates))
    room //= unit
    mask = (1 << (room + 1)) - 1
    young_first = candidates[::-1]
    reached = [1]
    for i in young_first:
        last = reached[-1]
        reached.append((last | last << (lengths[i] // unit)) & mask)
    total = reached[-1].bit_length() - 1
    chosen = []
    for i, before in zip(young_first[::-1], reached[-2::-1], strict=True):
        size = lengths[i] // unit
        if size <= total and before >> (total - size) & 1:
            chosen.append(i)
            total -= size
    return chosen
