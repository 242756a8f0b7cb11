"""Whole networks over ranks against one process: packs, weights, and what each rank does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from models.attention import Attention, local_attention
from models.family import NetworkConfig, build_network
from models.pack import Actions, Grid, PackLayout, Prefix
from models.stdit import ATTENTIONS, STDiTConfig
from parallel.collectives import Channel
from parallel.context import Comm, ContextAttention
from parallel.layout import PackShare
from parallel.spatiotemporal import Halves
from parallel.traffic import Sent, Traffic
from tests.distributed.cases import groups_of

TOKEN_DIM, TEXT_DIM = 8, 6


@dataclass(frozen=True)
class Pack:
    grids: tuple[Grid, ...]
    lens_text: tuple[int, ...]
    fps: tuple[float, ...]
    prefix: tuple[int, ...] = ()
    """Frames that are given of each; the first sample of such a pack has actions too."""


PACKS = {
    "videos and an image": Pack(((3, 4, 5), (1, 3, 3), (2, 7, 1)), (5, 0, 2), (24.0, 0.0, 8.0)),
    "shorter than the ranks": Pack(((1, 1, 2), (1, 1, 1), (1, 3, 1)), (1, 1, 0), (0.0, 0.0, 0.0)),
    "one token": Pack(((1, 1, 1),), (3,), (0.0,)),  # most ranks have nothing at all
    "even": Pack(((4, 2, 4), (4, 4, 2)), (2, 3), (24.0, 12.0)),
    "uneven": Pack(((5, 2, 7), (7, 3, 3)), (2, 0), (24.0, 12.0)),
    "given frames": Pack(((3, 4, 5), (4, 3, 3)), (5, 2), (24.0, 8.0), (2, 1)),
    "image": Pack(((1, 5, 6),), (4,), (0.0,)),
    "long and thin": Pack(((17, 1, 1),), (4,), (24.0,)),
}


def network(config: NetworkConfig, attention: Any) -> nn.Module:
    """Weights are random, also those that training starts from zero: zeros would hide errors."""
    model = build_network(config, token_dim=TOKEN_DIM, text_dim=TEXT_DIM, attention=attention)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.double().parameters():
            shape = parameter.shape
            parameter.copy_(torch.randn(shape, generator=generator, dtype=torch.float64) * 0.2)
    return model


def attentions(config: NetworkConfig, groups, traffic: Traffic, comms: Sequence[Comm]) -> Any:
    """Of each layer, the next of `comms`; for an ST-DiT of each kind of sub-layer too."""

    def build(layer: str, comm: Comm) -> Attention:
        return ContextAttention.build(groups, traffic=traffic, layer=layer, comm=comm)

    per_layer: list[Comm] = [comms[i % len(comms)] for i in range(config.num_layers)]
    if isinstance(config, STDiTConfig):
        return [
            {kind: build(f"blocks.{i}.{kind}", comm) for kind in (*ATTENTIONS, "cross")}
            for i, comm in enumerate(per_layer)
        ]
    return [build(f"blocks.{i}", comm) for i, comm in enumerate(per_layer)]


@dataclass
class Result:
    out: Tensor
    grad_x: Tensor
    replicated: dict[str, Tensor]
    """Gradients of the parameters and of the text."""


def step(
    model: nn.Module, layout: PackLayout, x: Tensor, noise: Tensor, text: Tensor, weight: Tensor
) -> Result:
    x, text = (t.detach().requires_grad_() for t in (x, text))
    out = model(x, noise, text, layout)
    (out * weight).sum().backward()
    leaves = {**dict(model.named_parameters()), "text": text}
    missing = [name for name, leaf in leaves.items() if leaf.grad is None]
    assert missing == ["text.null"] * all(layout.lens_text), missing
    assert x.grad is not None
    return Result(
        out.detach(), x.grad, {n: t.grad for n, t in leaves.items() if t.grad is not None}
    )


@dataclass(frozen=True)
class Comparison:
    worst: float
    """Largest difference of any output or gradient."""
    sent: dict[tuple[str, str], tuple[int, int]]
    """`(calls, bytes)` by (layer, collective)."""

    def calls(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for (_, name), (calls, _) in self.sent.items():
            total[name] = total.get(name, 0) + calls
        return total


def compare(
    config: NetworkConfig, pack: Pack, ulysses: int, ring: int, comms: Sequence[Comm]
) -> Comparison:
    """This rank's part of a network's step against the same in one process."""
    prefix = Prefix(pack.prefix, torch.full((len(pack.grids),), 0.2)) if pack.prefix else None
    actions = None
    if pack.prefix:
        num_frames = sum(t for t, _, _ in pack.grids)
        drawn = torch.randn(num_frames, 3, generator=torch.Generator().manual_seed(2))
        actions = Actions(drawn, (True, False))
    fps = torch.tensor(pack.fps)
    whole = PackLayout.build(pack.grids, pack.lens_text, fps, prefix, actions)
    generator = torch.Generator().manual_seed(1)
    n = whole.num_tokens
    x, weight = (torch.randn(n, TOKEN_DIM, generator=generator).double() for _ in range(2))
    noise = torch.randn(len(pack.grids), generator=generator).double()
    text = torch.randn(sum(pack.lens_text), TEXT_DIM, generator=generator).double()
    alone = step(network(config, local_attention), whole, x, noise, text, weight)

    groups, traffic = groups_of(ulysses, ring), Traffic()
    assert groups.cp is not None
    if isinstance(config, STDiTConfig):
        share = Halves(whole, Channel(groups.cp, traffic)).start(config.of_network())
    else:
        share = PackShare.of(whole, groups.topology.cp, groups.topology.cp_rank)
    model = network(config, attentions(config, groups, traffic, comms))
    here = step(model, share, x[share.index], noise, text, weight[share.index])
    errors = [
        (here.out - alone.out[share.index]).abs().flatten(),
        (here.grad_x - alone.grad_x[share.index]).abs().flatten(),
    ]
    for key, gradient in here.replicated.items():
        total = gradient.contiguous()
        dist.all_reduce(total, group=groups.cp)
        errors.append((total - alone.replicated[key]).abs().flatten())
    return Comparison(float(torch.cat(errors).max()), plain(traffic))


def plain(traffic: Traffic) -> dict[tuple[str, str], tuple[int, int]]:
    def pair(sent: Sent) -> tuple[int, int]:
        return sent.calls, sent.num_bytes

    return {key: pair(sent) for key, sent in traffic.sent.items()}
