"""Gloo tier: attention over ranks inside compiled graphs and recomputed blocks."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from models.attention import Layout
from models.dit import DiTConfig
from models.pack import PackLayout
from models.stdit import STDiTConfig
from parallel.collectives import Channel
from parallel.context import Comm, ContextAttention
from parallel.layout import PackShare, ShardedDense, ShardedPacked, split_evenly, split_lens
from parallel.spatiotemporal import Halves
from parallel.traffic import Traffic
from tests.distributed.cases import groups_of
from tests.distributed.networks import (
    PACKS,
    TEXT_DIM,
    TOKEN_DIM,
    Result,
    attentions,
    network,
    plain,
    step,
)


def compiled_attention(ulysses: int, ring: int, comm: Comm, form: str) -> tuple[float, bool]:
    """Largest difference of output and gradients from the same not compiled, and whether both
    sent the same. The graph must be one: a break would raise."""
    groups = groups_of(ulysses, ring)
    size, part = groups.topology.cp, groups.topology.cp_rank
    layout: Layout
    if form == "dense":
        sizes = split_evenly(11, size)
        layout = ShardedDense(sizes_q=sizes, sizes_k=sizes, part=part)
        shape = (2, sizes[part], 4, 8)
    else:
        parts = split_lens((11, 3, 90), size)
        layout = ShardedPacked.of(parts, parts, part, causal=form == "causal")
        shape = (sum(layout.lens_q), 4, 8)
    generator = torch.Generator().manual_seed(dist.get_rank())
    values = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(4)]
    results = []
    for compiled in (False, True):
        traffic = Traffic()
        attention = ContextAttention.build(groups, traffic=traffic, layer="a", comm=comm)

        def function(q: Tensor, k: Tensor, v: Tensor, attention: Any = attention) -> Tensor:
            return attention(q * 2, k, v, layout) + q

        if compiled:
            torch._dynamo.reset()
            function = torch.compile(function, backend="aot_eager", fullgraph=True)
        leaves = [x.clone().requires_grad_() for x in values[:3]]
        out = function(*leaves)
        grads = torch.autograd.grad((out * values[3]).sum(), leaves)
        results.append(([out.detach(), *grads], plain(traffic)))
    (eager, sent), (graph, sent_by_graph) = results
    worst = max(float((a - b).abs().max()) for a, b in zip(eager, graph, strict=True))
    return worst, sent == sent_by_graph and bool(sent)


@pytest.mark.parametrize(
    ("ulysses", "ring", "comm", "form"),
    [
        (1, 2, "p2p", "packed"),
        (2, 1, "a2a", "dense"),
        (2, 2, "a2a+p2p", "causal"),
    ],
)
def test_compiled_whole_and_the_same(worlds, ulysses, ring, comm: Comm, form):
    for worst, same in worlds[ulysses * ring].run(compiled_attention, ulysses, ring, comm, form):
        assert worst <= 1e-13
        assert same


def with_and_without(kind: str) -> tuple[float, dict[str, tuple[int, int]]]:
    """Largest difference between a step of a network with recomputed blocks and without; calls of
    each collective without and with."""
    config: Any = {"hidden_size": 48, "num_layers": 2, "num_heads": 4}
    config = STDiTConfig(**config) if kind == "stdit" else DiTConfig(**config)
    groups = groups_of(1, dist.get_world_size())
    assert groups.cp is not None
    pack = PACKS["uneven"]
    whole = PackLayout.build(pack.grids, pack.lens_text, torch.tensor(pack.fps))
    results, ledgers = [], []
    for recompute in (False, True):
        traffic = Traffic()
        if isinstance(config, STDiTConfig):
            share = Halves(whole, Channel(groups.cp, traffic)).start(config.of_network())
        else:
            share = PackShare.of(whole, groups.topology.cp, groups.topology.cp_rank)
        generator = torch.Generator().manual_seed(1)
        n = share.num_tokens
        x, weight = (torch.randn(n, TOKEN_DIM, generator=generator).double() for _ in range(2))
        noise = torch.randn(len(pack.grids), generator=generator).double()
        text = torch.randn(sum(pack.lens_text), TEXT_DIM, generator=generator).double()
        model = network(config, attentions(config, groups, traffic, ["p2p"]))
        if recompute:
            for block in model.get_submodule("blocks").children():
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        results.append(step(model, share, x, noise, text, weight))
        ledgers.append({name: calls for name, (calls, _) in traffic.by_name().items()})
    return difference(*results), {n: (ledgers[0][n], ledgers[1][n]) for n in ledgers[0]}


def difference(a: Result, b: Result) -> float:
    pairs = [(a.out, b.out), (a.grad_x, b.grad_x)]
    pairs += [(grad, b.replicated[name]) for name, grad in a.replicated.items()]
    return max(float((one - other).abs().max()) for one, other in pairs)


@pytest.mark.parametrize("kind", ["dit", "stdit"])
def test_recomputed_blocks_are_the_same_and_send_again(world2, kind):
    for worst, calls in world2.run(with_and_without, kind):
        assert worst <= 1e-13
        # Two blocks: the forward runs twice, the backward once.
        forward = {n: pair for n, pair in calls.items() if "backward" not in n}
        assert forward["ring.kv"] == (2, 4)
        assert all(b == a for n, (a, b) in calls.items() if "backward" in n)
        if kind == "stdit":
            # Those within blocks again, that of the result once.
            assert forward["switch"] == (4, 7)
