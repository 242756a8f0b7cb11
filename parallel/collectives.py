"""Collectives over one process group, counted, differentiable, with sizes that all ranks know.

No size is ever asked for: the splits are plain integers that follow from the layout. A peer that
is gone or late gives an error that names the rank, the layer and the collective. Ranks that believe
in different sizes are another matter: gloo ends a process that receives too much, and does not
notice one that receives too little. `Channel.agree` tells them apart.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from common.errors import VfmError
from parallel.handles import Handles
from parallel.traffic import Traffic


class CollectiveError(VfmError):
    """A collective did not end, since a peer is gone or late; or ranks hold different things."""


Pending = Callable[[], None]
"""Waits until what was posted has arrived."""


@dataclass(frozen=True)
class Channel:
    """One process group as seen from this rank, for one layer."""

    group: dist.ProcessGroup
    traffic: Traffic = field(default_factory=Traffic)
    layer: str = ""
    size: int = field(init=False, compare=False)
    rank: int = field(init=False, compare=False)
    """Within the group."""
    handle: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        for name, value in (
            ("size", dist.get_world_size(self.group)),
            ("rank", dist.get_rank(self.group)),
            ("handle", _CHANNELS.add(self)),
        ):
            object.__setattr__(self, name, value)

    @cached_property
    def _world_ranks(self) -> list[int]:
        return dist.get_process_group_ranks(self.group)

    def all_to_all(
        self, x: Tensor, splits_in: Sequence[int], splits_out: Sequence[int], name: str
    ) -> Tensor:
        """The i-th of `splits_in` elements of `x` (1-D) go to rank i, `splits_out[i]` come from it.

        Returns what came, 1-D, by source. Not differentiable; see `all_to_all`.
        """
        out = x.new_empty(sum(splits_out))
        kept = splits_in[self.rank]
        self.traffic.record(self.layer, name, (x.numel() - kept) * x.element_size())
        with self.named(name):
            dist.all_to_all_single(
                out, x.contiguous(), list(splits_out), list(splits_in), group=self.group
            )
        return out

    def pass_on(self, x: Tensor, num_received: int, name: str) -> tuple[Tensor, Pending]:
        """Sends `x` (contiguous) to the next rank of the ring and receives from the one before.

        Returns at once: a 1-D buffer of `num_received` elements, and the wait that fills it. `x`
        must stay untouched until then.
        """
        buffer = x.new_empty(num_received)
        after = self._world_ranks[(self.rank + 1) % self.size]
        before = self._world_ranks[(self.rank - 1) % self.size]
        self.traffic.record(self.layer, name, x.numel() * x.element_size())
        return buffer, self._post([(after, x)], [(before, buffer)], name)

    def all_gather(self, x: Tensor, sizes: Sequence[int], name: str) -> list[Tensor]:
        """`x` (contiguous) of every rank, 1-D, `sizes[i]` elements from rank i."""
        parts = [x.view(-1) if i == self.rank else x.new_empty(n) for i, n in enumerate(sizes)]
        self.traffic.record(self.layer, name, x.numel() * x.element_size() * (self.size - 1))
        others = [(self._world_ranks[i], i) for i in range(self.size) if i != self.rank]
        sends = [(world_rank, x) for world_rank, _ in others]
        self._post(sends, [(world_rank, parts[i]) for world_rank, i in others], name)()
        return parts

    def all_reduce(self, x: Tensor, name: str) -> None:
        """`x` (contiguous) becomes its sum over all ranks, alike on each to the bit."""
        assert x.is_contiguous()
        # By reduce-scatter and all-gather, as every backend's large sums go.
        num_bytes = 2 * x.numel() * x.element_size() * (self.size - 1) // self.size
        self.traffic.record(self.layer, name, num_bytes)
        with self.named(name):
            dist.all_reduce(x, group=self.group)

    def agree(self, facts: Mapping[str, int], name: str, device: torch.device) -> None:
        """Raises `CollectiveError` on every rank where ranks differ in `facts`, naming them.

        A collective more, of tensors on `device`: for looking into a run that hangs or goes astray.
        """
        mine = torch.tensor(list(facts.values()), device=device)
        every = self.all_gather(mine, [len(facts)] * self.size, name)
        differences = [
            f"{fact} {[int(x[i]) for x in every]}"
            for i, fact in enumerate(facts)
            if len({int(x[i]) for x in every}) > 1
        ]
        if differences:
            raise CollectiveError(
                f"{name} of layer {self.layer or '?'}: ranks {self._world_ranks} hold different "
                f"{', '.join(differences)}; give all of them the same pack and the same model"
            )

    def _post(
        self, sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]], name: str
    ) -> Pending:
        # Gloo takes an expanded tensor for as many elements as it claims to have.
        assert all(x.is_contiguous() for _, x in sends + receives)

        def ops(function: Any, pairs: list[tuple[int, Tensor]]) -> list[dist.P2POp]:
            return [dist.P2POp(function, x, peer, self.group) for peer, x in pairs]

        with self.named(name):
            works = dist.batch_isend_irecv(ops(dist.isend, sends) + ops(dist.irecv, receives))

        def wait() -> None:
            with self.named(name):
                for work in works:
                    work.wait()
            # Until here the buffers must live, whatever the caller has dropped.
            sends.clear()

        return wait

    @contextmanager
    def named(self, name: str):
        """Errors of the backend, within, become a `CollectiveError` that says who, what, where."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            where = f" of layer {self.layer}" if self.layer else ""
            reason = (str(error).splitlines() or ["no reason given"])[0]
            raise CollectiveError(
                f"rank {dist.get_rank()}: {name}{where} over ranks {self._world_ranks} failed; a "
                f"peer stopped or is late ({reason})"
            ) from error


_CHANNELS: Handles[Channel] = Handles()


@torch.library.custom_op("vfm::all_to_all", mutates_args=())
def _all_to_all(
    x: Tensor, splits_in: Sequence[int], splits_out: Sequence[int], name: str, channel: int
) -> Tensor:
    return _CHANNELS[channel].all_to_all(x, splits_in, splits_out, name)


@_all_to_all.register_fake
def _(
    x: Tensor, splits_in: Sequence[int], splits_out: Sequence[int], name: str, channel: int
) -> Tensor:
    return x.new_empty(sum(splits_out))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.splits_in, ctx.splits_out, ctx.name, ctx.channel = inputs
    ctx.kept = _CHANNELS[ctx.channel]  # Until the backward, whatever the caller drops.


def _back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    name = f"{ctx.name}.backward"
    return _all_to_all(grad, ctx.splits_out, ctx.splits_in, name, ctx.channel), *[None] * 4


_all_to_all.register_autograd(_back, setup_context=_setup)


def all_to_all(
    x: Tensor, channel: Channel, splits_in: Sequence[int], splits_out: Sequence[int], name: str
) -> Tensor:
    """`Channel.all_to_all` with its backward, the exchange in the other direction.

    One operator, through which a compiled graph goes whole.
    """
    return _all_to_all(x, splits_in, splits_out, name, channel.handle)
