"""Exchange of tokens for heads: each rank gets whole sequences for some of the heads.

Jacobs et al. 2023 (DeepSpeed-Ulysses). Heads, like tokens, need not divide: a rank may hold one
more than its neighbour. Where there are fewer key heads than ranks, ranks share them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from common.errors import ConfigError
from parallel.collectives import Channel, all_to_all
from parallel.layout import Lens, ShardedPacked, split_evenly


@dataclass(frozen=True)
class HeadShare:
    """Query heads `[q0, q1)` and the key heads `[k0, k1)` that they attend to."""

    q0: int
    q1: int
    k0: int
    k1: int


def head_shares(num_q: int, num_k: int, parts: int) -> list[HeadShare]:
    """The heads of each rank. Raises `ConfigError` where there are fewer heads than ranks."""
    if num_q < parts:
        raise ConfigError(
            f"ulysses={parts} cannot split {num_q} heads: set ulysses={num_q} or smaller, and "
            "ring larger in turn"
        )
    group = num_q // num_k
    # Whole groups where there are enough, so that no key head is sent twice.
    unit = group if num_k >= parts else 1
    shares, start = [], 0
    for n in split_evenly(num_q // unit, parts):
        end = start + n * unit
        shares.append(HeadShare(start, end, start // group, (end - 1) // group + 1))
        start = end
    return shares


def exchange_heads(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: ShardedPacked,
    channel: Channel,
    inner: Callable[[Tensor, Tensor, Tensor, ShardedPacked], Tensor],
) -> Tensor:
    """Attention by `inner`, given fewer heads and the tokens of all ranks of the channel.

    `q [N, H, D]`, `k` and `v` `[M, K, D]` are this rank's part of `layout`. `inner` gets a layout
    of as many parts fewer as the channel has ranks. Two exchanges, one of q, k and v and one of
    the result.
    """
    u, head_dim = channel.size, q.shape[2]
    shares = head_shares(q.shape[1], k.shape[1], u)
    mine = shares[channel.rank]
    first = layout.part - channel.rank
    lens_q, lens_k = layout.parts_q[first : first + u], layout.parts_k[first : first + u]
    tokens_q, tokens_k = [sum(lens) for lens in lens_q], [sum(lens) for lens in lens_k]
    heads_q, heads_k = mine.q1 - mine.q0, mine.k1 - mine.k0

    send = [
        part.reshape(-1)
        for s in shares
        for part in (q[:, s.q0 : s.q1], k[:, s.k0 : s.k1], v[:, s.k0 : s.k1])
    ]
    splits_in = [sum(part.numel() for part in send[3 * i : 3 * i + 3]) for i in range(u)]
    sizes = [
        (n_q * heads_q * head_dim, n_k * heads_k * head_dim)
        for n_q, n_k in zip(tokens_q, tokens_k, strict=True)
    ]
    splits_out = [size_q + 2 * size_k for size_q, size_k in sizes]
    received = all_to_all(torch.cat(send), channel, splits_in, splits_out, "ulysses.qkv")
    pieces = received.split([n for size_q, size_k in sizes for n in (size_q, size_k, size_k)])
    whole_q = torch.cat(pieces[0::3]).view(-1, heads_q, head_dim)
    whole_k = torch.cat(pieces[1::3]).view(-1, heads_k, head_dim)
    whole_v = torch.cat(pieces[2::3]).view(-1, heads_k, head_dim)

    there_q, back = _by_sequence(lens_q, q.device)
    there_k, _ = _by_sequence(lens_k, k.device)
    heads = _key_heads(mine, q.shape[1] // k.shape[1], k.device)
    out = inner(
        whole_q.index_select(0, there_q),
        _select(whole_k.index_select(0, there_k), heads),
        _select(whole_v.index_select(0, there_k), heads),
        _merged(layout, u),
    ).index_select(0, back)

    counts = [s.q1 - s.q0 for s in shares]
    splits_in = [n * heads_q * head_dim for n in tokens_q]
    splits_out = [q.shape[0] * n * head_dim for n in counts]
    home = all_to_all(out.reshape(-1), channel, splits_in, splits_out, "ulysses.out")
    by_rank = home.split(splits_out)
    return torch.cat([x.view(-1, n, head_dim) for x, n in zip(by_rank, counts, strict=True)], dim=1)


def _merged(layout: ShardedPacked, u: int) -> ShardedPacked:
    """The layout in which `u` parts in a row are one."""
    return ShardedPacked.of(
        _joined(layout.parts_q, u),
        _joined(layout.parts_k, u),
        layout.part // u,
        causal=layout.causal,
    )


def _joined(parts: tuple[Lens, ...], u: int) -> tuple[Lens, ...]:
    runs = [parts[i : i + u] for i in range(0, len(parts), u)]
    return tuple(tuple(map(sum, zip(*run, strict=True))) for run in runs)


def _key_heads(mine: HeadShare, group: int, device: torch.device) -> Tensor | None:
    """The key head of each of this rank's query heads; None where they group evenly."""
    heads = [h // group - mine.k0 for h in range(mine.q0, mine.q1)]
    num_k = mine.k1 - mine.k0
    if len(heads) % num_k == 0:
        size = len(heads) // num_k
        if heads == [h // size for h in range(len(heads))]:
            return None
    return torch.tensor(heads, device=device)


def _select(x: Tensor, heads: Tensor | None) -> Tensor:
    return x if heads is None else x.index_select(1, heads)


@lru_cache(maxsize=64)
def _by_sequence(lens: tuple[Lens, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Index from the order (rank, sequence) to (sequence, rank), and back."""
    num_tokens, total = torch.tensor(lens).flatten(), sum(map(sum, lens))
    sequence = torch.arange(len(lens[0])).repeat(len(lens))
    sequence = sequence.repeat_interleave(num_tokens, output_size=total)
    there = sequence.argsort(stable=True)
    return there.to(device), there.argsort().to(device)
