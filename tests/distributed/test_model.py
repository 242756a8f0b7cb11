"""Gloo tier: a whole network over ranks against one process, outputs and all gradients."""

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from models.attention import Attention, local_attention
from models.dit import DiT, DiTConfig
from models.pack import Grid, PackLayout
from parallel.context import ContextAttention, Transfer
from parallel.layout import PackShare
from parallel.traffic import Traffic
from tests.distributed.cases import groups_of

CONFIG = DiTConfig(hidden_size=48, num_layers=2, num_heads=4, mlp_ratio=2.0)
TOKEN_DIM, TEXT_DIM = 8, 6


@dataclass(frozen=True)
class Pack:
    grids: tuple[Grid, ...]
    lens_text: tuple[int, ...]
    fps: tuple[float, ...]


PACKS = {
    "videos and an image": Pack(((3, 4, 5), (1, 3, 3), (2, 7, 1)), (5, 0, 2), (24.0, 0.0, 8.0)),
    "shorter than the ranks": Pack(((1, 1, 2), (1, 1, 1), (1, 3, 1)), (1, 1, 0), (0.0, 0.0, 0.0)),
    "one token": Pack(((1, 1, 1),), (3,), (0.0,)),  # most ranks have nothing at all
}


def network(attention: Attention | list[Attention]) -> DiT:
    """Weights are random, also those that training starts from zero: zeros would hide errors."""
    model = DiT(CONFIG, token_dim=TOKEN_DIM, text_dim=TEXT_DIM, attention=attention).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            shape = parameter.shape
            parameter.copy_(torch.randn(shape, generator=generator, dtype=torch.float64) * 0.2)
    return model


@dataclass
class Result:
    out: Tensor
    grad_x: Tensor
    replicated: dict[str, Tensor]
    """Gradients of the parameters and of the text."""


def step(
    model: DiT, layout: PackLayout, x: Tensor, noise: Tensor, text: Tensor, weight: Tensor
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


def compare(
    name: str, ulysses: int, ring: int, transfer: Transfer
) -> tuple[float, dict[str, tuple[int, int]], set[str]]:
    """Largest difference of anything, and what was sent, by which layers."""
    pack = PACKS[name]
    fps = torch.tensor(pack.fps)
    whole = PackLayout.build(pack.grids, pack.lens_text, fps)
    generator = torch.Generator().manual_seed(1)
    n = whole.num_tokens
    x, weight = (torch.randn(n, TOKEN_DIM, generator=generator).double() for _ in range(2))
    noise = torch.randn(len(pack.grids), generator=generator).double()
    text = torch.randn(sum(pack.lens_text), TEXT_DIM, generator=generator).double()
    alone = step(network(local_attention), whole, x, noise, text, weight)

    groups = groups_of(ulysses, ring)
    share = PackShare.of(whole, groups.topology.cp, groups.topology.cp_rank)
    traffic = Traffic()
    attention: list[Attention] = [
        ContextAttention.build(groups, traffic=traffic, layer=f"blocks.{i}", transfer=transfer)
        for i in range(CONFIG.num_layers)
    ]
    here = step(network(attention), share, x[share.index], noise, text, weight[share.index])
    errors = [
        (here.out - alone.out[share.index]).abs().flatten(),
        (here.grad_x - alone.grad_x[share.index]).abs().flatten(),
    ]
    for key, gradient in here.replicated.items():
        total = gradient.contiguous()
        dist.all_reduce(total, group=groups.cp)
        errors.append((total - alone.replicated[key]).abs().flatten())
    return float(torch.cat(errors).max()), traffic.by_name(), {layer for layer, _ in traffic.sent}


@pytest.mark.parametrize("name", list(PACKS))
@pytest.mark.parametrize(
    ("ulysses", "ring", "transfer"),
    [
        (1, 2, "p2p"),
        (2, 1, "p2p"),
        (1, 2, "all_gather"),
        (1, 4, "p2p"),
        (4, 1, "p2p"),
        (2, 2, "p2p"),
        (2, 2, "all_gather"),
    ],
)
def test_network_over_ranks_is_as_in_one_process(worlds, name, ulysses, ring, transfer):
    results = worlds[ulysses * ring].run(compare, name, ulysses, ring, transfer)
    worst = max(error for error, _, _ in results)
    print(f"{name}, ulysses={ulysses} ring={ring} {transfer}: {worst:.1e}")
    assert worst <= 1e-12
    for _, sent, layers in results:
        # Self-attention alone sends; text is whole everywhere, so cross-attention does not.
        assert layers == {"blocks.0", "blocks.1"}
        calls = {kind: count for kind, (count, _) in sent.items()}
        expected = {}
        if ulysses > 1:
            for kind in ("ulysses.qkv", "ulysses.out"):
                expected[kind] = expected[f"{kind}.backward"] = 2
        if ring > 1 and transfer == "p2p":
            expected["ring.kv"] = expected["ring.kv.backward"] = 2 * (ring - 1)
            expected["ring.dkv.backward"] = 2 * ring
        elif ring > 1:
            for kind in ("gather.kv", "gather.kv.backward", "gather.dkv.backward"):
                expected[kind] = 2
        assert calls == expected
