"""Exact attention over keys that lie on other ranks, one block of keys after another.

Partial attentions are merged by their log-sum-exp (Liu et al. 2023, Ring Attention, algorithm 1);
the backward meets every block again instead of keeping it. Two transports bring the blocks: a ring,
which sends the next block while this one is computed, and a gather, one collective for all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from models.attention import Packed
from parallel.collectives import Channel, Pending
from parallel.handles import Handles
from parallel.kernels.base import AnyKernel, Gradients, wide
from parallel.kernels.fp8 import (
    Rounded,
    num_bytes,
    packed_bytes,
    rounded_forward,
    unpacked_bytes,
)
from parallel.kernels.packed import packed_backward, packed_forward
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


class Wire(Protocol):
    """What a block is, as it is sent, and how queries attend to it."""

    def size(self, tokens: int, k: Tensor) -> int:
        """Elements of the block of a rank with so many tokens; `k` tells heads and their size."""
        ...

    def queries(self, q: Tensor, k: Tensor) -> Any:
        """Queries as `attend` wants them, made once for all blocks."""
        ...

    def pack(self, k: Tensor, v: Tensor) -> Tensor: ...

    def attend(
        self, queries: Any, block: Tensor, k: Tensor, pair: Packed
    ) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class PlainWire:
    """Keys and values as they are."""

    kernel: AnyKernel | None = None

    def size(self, tokens: int, k: Tensor) -> int:
        return 2 * tokens * k.shape[1] * k.shape[2]

    def queries(self, q: Tensor, k: Tensor) -> Tensor:
        return q

    def pack(self, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([k.reshape(-1), v.reshape(-1)])

    def unpack(self, block: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        block_k, block_v = block.view(2, -1, *k.shape[1:])
        return block_k, block_v

    def attend(
        self, queries: Tensor, block: Tensor, k: Tensor, pair: Packed
    ) -> tuple[Tensor, Tensor]:
        return packed_forward(queries, *self.unpack(block, k), pair, self.kernel)


@dataclass(frozen=True)
class Fp8Wire:
    """Keys and values of 8 bits with a scale a head, rounded once, by the rank that holds them."""

    kernel: AnyKernel | None = None

    def size(self, tokens: int, k: Tensor) -> int:
        return num_bytes(tokens, k.shape[1], k.shape[2])

    def queries(self, q: Tensor, k: Tensor) -> tuple[Rounded, torch.dtype]:
        return Rounded.of(q, k.shape[1]), q.dtype

    def pack(self, k: Tensor, v: Tensor) -> Tensor:
        return packed_bytes(Rounded.of(k, k.shape[1]), Rounded.of(v, k.shape[1]))

    def attend(
        self, queries: tuple[Rounded, torch.dtype], block: Tensor, k: Tensor, pair: Packed
    ) -> tuple[Tensor, Tensor]:
        q, dtype = queries
        block_k, block_v = unpacked_bytes(block, k.shape[1], k.shape[2])
        return rounded_forward(q, block_k, block_v, pair, self.kernel, dtype)


@dataclass(frozen=True, kw_only=True)
class BlockAttention:
    """Attention of this rank's `q [N, H, D]` to the keys of all ranks of the channel, `[M, K, D]`.

    Exact to rounding, forward and backward. Sums are kept and gradients of keys travel in float32
    for half types. Without a channel the keys are all here.
    """

    channel: Channel | None
    transport: Transport = field(default_factory=RingTransport)
    kernel: AnyKernel | None = None
    fp8: bool = False
    """Rounds queries, keys and values to 8 bits in the forward pass; what is sent there is a
    quarter to a half. The backward is that of the wider type, at the rounded output."""
    handle: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "handle", _CALLERS.add(self))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layout: ShardedPacked) -> Tensor:
        # An operator takes flat lists of numbers.
        lens = [n for parts in (layout.parts_q, layout.parts_k) for lens in parts for n in lens]
        return _forward(q, k, v, lens, layout.num_parts, layout.part, layout.causal, self.handle)[0]

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, layout: ShardedPacked
    ) -> tuple[Tensor, Tensor]:
        """`out` like `q`, and `lse [N, H]`."""
        # Keys arrive as kernels need them, features side by side; queries may be a transposed view.
        q = q.contiguous()
        wire: Wire = Fp8Wire(self.kernel) if self.fp8 else PlainWire(self.kernel)
        queries: Any = wire.queries(q, k)
        out = lse = None
        for source, block in self._blocks(wire, k, v, layout, ""):
            pair = _pair(layout, source)
            if pair is None:
                continue
            part, part_lse = wire.attend(queries, block, k, pair)
            if out is None or lse is None:
                out, lse = part, part_lse
            else:
                out, lse = merge(out, lse, part, part_lse)
        assert out is not None and lse is not None, "a rank's own keys are always visible"
        return out.to(q.dtype), lse

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        layout: ShardedPacked,
    ) -> Gradients:
        q = q.contiguous()
        wire = PlainWire(self.kernel)
        dq = q.new_zeros(q.shape, dtype=wide(q.dtype))
        home = self._homecoming(wire, k, layout)
        for source, block in self._blocks(wire, k, v, layout, ".backward"):
            pair = _pair(layout, source)
            if pair is None:
                home.send(block.new_zeros(block.shape, dtype=wide(k.dtype)))
                continue
            block_k, block_v = wire.unpack(block, k)
            part, dk, dv = packed_backward(dout, q, block_k, block_v, out, lse, pair, self.kernel)
            dq += part
            home.send(wire.pack(dk, dv))
        dk, dv = wire.unpack(home.own(), k)
        # Copies: what an operator returns may not share memory.
        return dq.to(q.dtype), dk.to(k.dtype, copy=True), dv.to(v.dtype, copy=True)

    def _blocks(
        self, wire: Wire, k: Tensor, v: Tensor, layout: ShardedPacked, suffix: str
    ) -> Iterator[tuple[int, Tensor]]:
        """Each rank's block after the other, with the rank."""
        own = wire.pack(k, v)
        if self.channel is None:
            yield 0, own
            return
        sizes = _sizes(wire, layout, k)
        blocks = self.transport.blocks(own, sizes, self.channel, suffix)
        yield from zip(_sources(self.channel), blocks, strict=True)

    def _homecoming(self, wire: Wire, k: Tensor, layout: ShardedPacked) -> Homecoming:
        if self.channel is None:
            return _AtHome()
        return self.transport.homecoming(_sizes(wire, layout, k), self.channel)


class _AtHome:
    """The gradient of the one block that there is."""

    def send(self, grad: Tensor) -> None:
        self._grad = grad

    def own(self) -> Tensor:
        return self._grad


_CALLERS: Handles[BlockAttention] = Handles()


@torch.library.custom_op("vfm::block_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lens: Sequence[int],
    num_parts: int,
    part: int,
    causal: bool,
    caller: int,
) -> tuple[Tensor, Tensor]:
    """An operator, so that a compiled graph goes through it whole: what it sends between ranks
    cannot be traced, and need not be."""
    return _CALLERS[caller].forward(q, k, v, _layout(lens, num_parts, part, causal))


@torch.library.custom_op("vfm::block_attention_backward", mutates_args=())
def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    lens: Sequence[int],
    num_parts: int,
    part: int,
    causal: bool,
    caller: int,
) -> tuple[Tensor, Tensor, Tensor]:
    layout = _layout(lens, num_parts, part, causal)
    return _CALLERS[caller].backward(dout, q, k, v, out, lse, layout)


@_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, lens: Any, num_parts: int, part: int, causal: bool, caller: int
) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=wide(q.dtype))


@_backward.register_fake
def _(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *ctx.plain = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.kept = _CALLERS[ctx.plain[-1]]  # Until the backward, whatever the caller drops.


def _gradients(ctx: Any, dout: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse = ctx.saved_tensors
    return (*_backward(dout, q, k, v, out, lse, *ctx.plain), *[None] * len(ctx.plain))


_forward.register_autograd(_gradients, setup_context=_setup)


def _layout(lens: Sequence[int], num_parts: int, part: int, causal: bool) -> ShardedPacked:
    rows = len(lens) // (2 * num_parts)
    parts = [tuple(lens[i * rows : (i + 1) * rows]) for i in range(2 * num_parts)]
    return ShardedPacked.of(tuple(parts[:num_parts]), tuple(parts[num_parts:]), part, causal=causal)


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


def _sizes(wire: Wire, layout: ShardedPacked, k: Tensor) -> list[int]:
    return [wire.size(sum(lens), k) for lens in layout.parts_k]
