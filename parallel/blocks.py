"""Exact attention over keys that lie on other ranks, one block of keys after another.

Partial attentions are merged by their log-sum-exp (Liu et al. 2023, Ring Attention, algorithm 1);
the backward meets every block again instead of keeping it. Two transports bring the blocks: a ring,
which sends the next block while this one is computed, and a gather, one collective for all.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.attention import Packed
from parallel.collectives import Channel, Pending
from parallel.kernels import Kernel, packed_backward, packed_forward, wide
from parallel.layout import ShardedPacked


class Transport(Protocol):
    """Brings every rank's keys and values here, and their gradients home.

    A block is k and v of one rank, flat in one tensor. Every rank sees its own block first, then
    those of the ranks before it; `sizes[i]` is the number of elements of rank i's block.
    """

    def blocks(
        self, own: Tensor, sizes: Sequence[int], channel: Channel, suffix: str
    ) -> Iterator[Tensor]: ...

    def homecoming(self, sizes: Sequence[int], channel: Channel) -> "Homecoming": ...


class Homecoming(Protocol):
    """Takes the gradient of each block, in the order of the blocks, and sums each at its owner."""

    def send(self, grad: Tensor) -> None: ...

    def own(self) -> Tensor:
        """The gradient of this rank's block, once all are sent."""
        ...


class RingTransport:
    """Blocks travel from rank to rank; so do their gradients, one hop more, growing on the way."""

    def blocks(
        self, own: Tensor, sizes: Sequence[int], channel: Channel, suffix: str
    ) -> Iterator[Tensor]:
        block = own
        for step in range(channel.size - 1):
            # Posted before the caller computes on this block, waited for after.
            arriving = sizes[channel.rank - step - 1]
            following, arrived = channel.pass_on(block, arriving, f"ring.kv{suffix}")
            yield block
            arrived()
            block = following
        yield block

    def homecoming(self, sizes: Sequence[int], channel: Channel) -> Homecoming:
        return _RingHomecoming(sizes, channel)


class _RingHomecoming:
    def __init__(self, sizes: Sequence[int], channel: Channel) -> None:
        self._sizes, self._channel = sizes, channel
        self._step = 0
        self._travelling: tuple[Tensor, Pending] | None = None

    def send(self, grad: Tensor) -> None:
        grad = grad if self._travelling is None else self.own() + grad
        self._step += 1
        arriving = self._sizes[(self._channel.rank - self._step) % self._channel.size]
        self._travelling = self._channel.pass_on(grad, arriving, "ring.dkv.backward")

    def own(self) -> Tensor:
        assert self._travelling is not None
        buffer, arrived = self._travelling
        arrived()
        return buffer


class GatherTransport:
    """All blocks at once; gradients by one exchange, each summed at its owner."""

    def blocks(
        self, own: Tensor, sizes: Sequence[int], channel: Channel, suffix: str
    ) -> Iterator[Tensor]:
        parts = channel.all_gather(own, sizes, f"gather.kv{suffix}")
        for step in range(channel.size):
            yield parts[channel.rank - step]

    def homecoming(self, sizes: Sequence[int], channel: Channel) -> Homecoming:
        return _GatherHomecoming(sizes, channel)


class _GatherHomecoming:
    def __init__(self, sizes: Sequence[int], channel: Channel) -> None:
        self._sizes, self._channel = sizes, channel
        self._grads: list[Tensor] = []

    def send(self, grad: Tensor) -> None:
        self._grads.append(grad)

    def own(self) -> Tensor:
        n, rank = self._channel.size, self._channel.rank
        by_owner = torch.cat([self._grads[(rank - owner) % n] for owner in range(n)])
        size = self._sizes[rank]
        received = self._channel.all_to_all(
            by_owner, self._sizes, [size] * n, "gather.dkv.backward"
        )
        # In the order of ranks, so that the sum does not depend on who came first.
        return received.view(n, size).sum(0)


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: ShardedPacked,
    channel: Channel,
    transport: Transport,
    kernel: Kernel | None = None,
) -> Tensor:
    """Attention of this rank's `q [N, H, D]` to the keys of all ranks of the channel, `[M, K, D]`.

    Exact to rounding, forward and backward. Sums are kept and gradients of keys travel in float32
    for half types.
    """
    out = _BlockAttention.apply(q, k, v, layout, channel, transport, kernel)
    assert isinstance(out, Tensor)
    return out


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layout: ShardedPacked,
        channel: Channel,
        transport: Transport,
        kernel: Kernel | None,
    ) -> Tensor:
        # Keys arrive as kernels need them, features side by side; queries may be a transposed view.
        q = q.contiguous()
        out = lse = None
        blocks = transport.blocks(_flat(k, v), _sizes(layout, k), channel, "")
        for source, block in zip(_sources(channel), blocks, strict=True):
            pair = _pair(layout, source)
            if pair is None:
                continue
            part, part_lse = packed_forward(q, *_unflat(block, k), pair, kernel)
            if out is None or lse is None:
                out, lse = part, part_lse
            else:
                out, lse = merge(out, lse, part, part_lse)
        assert out is not None and lse is not None, "a rank's own keys are always visible"
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.layout, ctx.channel, ctx.transport, ctx.kernel = layout, channel, transport, kernel
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        layout, channel, transport = ctx.layout, ctx.channel, ctx.transport
        sizes = _sizes(layout, k)
        dq = q.new_zeros(q.shape, dtype=wide(q.dtype))
        home = transport.homecoming(sizes, channel)
        blocks = transport.blocks(_flat(k, v), sizes, channel, ".backward")
        for source, block in zip(_sources(channel), blocks, strict=True):
            pair = _pair(layout, source)
            if pair is None:
                home.send(block.new_zeros(block.shape, dtype=wide(k.dtype)))
                continue
            part, dk, dv = packed_backward(
                grads[0], q, *_unflat(block, k), out, lse, pair, ctx.kernel
            )
            dq += part
            home.send(_flat(dk, dv))
        dk, dv = _unflat(home.own(), k)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None


def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys from attention over each: `[N, H, D]` and `[N, H]`.

    Rows that saw no key have a log-sum-exp of minus infinity, and weigh nothing.
    """
    total = torch.logaddexp(lse, other_lse)
    # Where neither saw a key, minus infinity less itself would be no number.
    safe = total.masked_fill(total == -torch.inf, 0.0)
    weight, other_weight = (lse - safe).exp()[..., None], (other_lse - safe).exp()[..., None]
    return out * weight + other * other_weight, total


def _sources(channel: Channel) -> list[int]:
    return [(channel.rank - step) % channel.size for step in range(channel.size)]


def _pair(layout: ShardedPacked, source: int) -> Packed | None:
    """How this rank's queries see the keys of `source`; None where all of them come later."""
    if layout.causal and source > layout.part:
        return None
    causal = layout.causal and source == layout.part
    return Packed(layout.lens_q, layout.parts_k[source], causal)


def _sizes(layout: ShardedPacked, k: Tensor) -> list[int]:
    return [2 * sum(lens) * k.shape[1] * k.shape[2] for lens in layout.parts_k]


def _flat(k: Tensor, v: Tensor) -> Tensor:
    return torch.cat([k.reshape(-1), v.reshape(-1)])


def _unflat(block: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    k, v = block.view(2, -1, *like.shape[1:])
    return k, v
