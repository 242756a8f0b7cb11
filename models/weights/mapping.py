"""From the tensors of another project's file to ours and back, without a bit lost.

A mapping is a list of rules that covers every parameter of a network and every tensor of the file,
once. The rules only rename, reorder, reshape, stack and repeat, so both ways are exact.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One parameter of ours and the tensors of the file that it is made of."""

    ours: str
    theirs: tuple[str, ...]
    read: Callable[[list[Tensor]], Tensor]
    write: Callable[[Tensor], list[Tensor]]


def same(ours: str, theirs: str) -> Rule:
    """The tensor as it is."""
    return Rule(ours=ours, theirs=(theirs,), read=lambda t: t[0], write=lambda t: [t])


def reshaped(ours: str, theirs: str, shape: Sequence[int], their_shape: Sequence[int]) -> Rule:
    """The same numbers in another shape."""
    return Rule(
        ours=ours,
        theirs=(theirs,),
        read=lambda t: t[0].reshape(tuple(shape)),
        write=lambda t: [t.reshape(tuple(their_shape))],
    )


def reordered(ours: str, theirs: str, order: Tensor) -> Rule:
    """Row i of ours is row `order[i]` of theirs."""
    inverse = order.argsort()
    return Rule(
        ours=ours,
        theirs=(theirs,),
        read=lambda t: t[0].index_select(0, order),
        write=lambda t: [t.index_select(0, inverse.to(t.device))],
    )


def stacked(ours: str, theirs: Sequence[str]) -> Rule:
    """Theirs, of equal sizes, one below the other."""
    return Rule(
        ours=ours,
        theirs=tuple(theirs),
        read=lambda t: torch.cat(t),
        write=lambda t: list(t.chunk(len(theirs))),
    )


def repeated(ours: str, theirs: Sequence[str]) -> Rule:
    """The file holds equal copies. Reading raises `DataError` where they differ."""

    def read(tensors: list[Tensor]) -> Tensor:
        for name, tensor in zip(theirs, tensors, strict=True):
            if not torch.equal(tensor, tensors[0]):
                raise DataError(f"{name} differs from {theirs[0]}, of which it should be a copy")
        return tensors[0]

    return Rule(
        ours=ours, theirs=tuple(theirs), read=read, write=lambda t: [t.clone() for _ in theirs]
    )


def half_order(num_heads: int, head_dim: int) -> Tensor:
    """For `reordered`: from a rotation of features (2i, 2i + 1) to one of (i, i + D/2)."""
    one = torch.arange(head_dim).view(-1, 2).T.flatten()
    return (torch.arange(num_heads)[:, None] * head_dim + one).flatten()


def channel_first_order(channels: int, patch: Sequence[int], axes: Sequence[int]) -> Tensor:
    """For `reordered`: features in the order of `axes` to the order (c pt ph pw).

    Args:
        axes: for each place of theirs, which of 0 c, 1 pt, 2 ph, 3 pw stands there.
    """
    sizes = [channels, *patch]
    theirs = torch.arange(channels * patch[0] * patch[1] * patch[2]).view([sizes[a] for a in axes])
    return theirs.permute([list(axes).index(a) for a in range(4)]).flatten()


def to_file(parameters: Mapping[str, Tensor], rules: Sequence[Rule]) -> dict[str, Tensor]:
    """All tensors of the file, of a network's parameters by name."""
    assert sorted(rule.ours for rule in rules) == sorted(parameters), "rules cover all, once"
    return {
        name: tensor.contiguous()
        for rule in rules
        for name, tensor in zip(
            rule.theirs, rule.write(parameters[rule.ours].detach()), strict=True
        )
    }


def from_file(network: nn.Module, tensors: Mapping[str, Tensor], rules: Sequence[Rule]) -> None:
    """Gives the network the tensors of the file, in the file's types.

    Args:
        network: may lie on the meta device, without storage.
    Raises:
        DataError: listing every name that is missing, unknown or of another shape, with shapes.
    """
    shapes = {name: p.detach().to("meta") for name, p in network.named_parameters()}
    expected = {name: tuple(t.shape) for name, t in to_file(shapes, rules).items()}
    problems = [f"missing: {name} {expected[name]}" for name in expected if name not in tensors]
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if name not in expected:
            problems.append(f"unknown: {name} {shape}")
        elif shape != expected[name]:
            problems.append(f"{name}: {shape} in the file, {expected[name]} in the network")
    if problems:
        raise DataError(
            f"the file does not fit the network in {len(problems)} tensors:\n  "
            + "\n  ".join(problems)
        )
    for rule in rules:
        tensor = rule.read([tensors[name] for name in rule.theirs]).contiguous()
        module, _, leaf = rule.ours.rpartition(".")
        setattr(network.get_submodule(module), leaf, nn.Parameter(tensor.clone()))
