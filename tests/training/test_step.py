"""Wiring tier: the arithmetic of a training step."""

import contextlib
import copy
from itertools import islice

import pytest
import torch

from dataloading.batch import Batch
from models.dit import DiT, DiTConfig
from models.initialize import initialize
from models.objectives.config import ObjectiveConfig
from models.objectives.loss import Objective
from models.pack import PackLayout
from tests.training.runs import make_trainer, train
from training import trainer as trainer_module
from training.config import OptimizerConfig
from training.ema import EMA
from training.metrics import read_metrics
from training.optimizer import make_optimizer
from training.step import (
    Prepared,
    add_gradients,
    draws,
    drop_text,
    num_loss_tokens,
    prepare,
    weighted_loss,
)

OBJECTIVE = Objective(ObjectiveConfig())


def make_network() -> DiT:
    config = DiTConfig(hidden_size=24, num_layers=2, num_heads=2)
    network = DiT(config, token_dim=12, text_dim=16).double()
    initialize(network, seed=1)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            # Away from the zero start, where most gradients are zero.
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return network


def make_pack(ids: str, grids, lens_text, seed: int, *, masked: bool) -> Prepared:
    """A sample for each letter of `ids`."""
    generator = torch.Generator().manual_seed(seed)
    double = {"dtype": torch.float64, "generator": generator}
    layout = PackLayout.build(grids, lens_text, torch.full((len(grids),), 24.0))
    mask = torch.randint(0, 2, (layout.num_tokens,), generator=generator) if masked else None
    return Prepared(
        clean=torch.randn(layout.num_tokens, 12, **double),
        text=torch.randn(sum(lens_text), 16, **double),
        layout=layout,
        sample_ids=list(ids),
        loss_mask=mask,
    )


def concatenated(a: Prepared, b: Prepared) -> Prepared:
    layout = PackLayout.build(
        a.layout.grids + b.layout.grids,
        a.layout.lens_text + b.layout.lens_text,
        torch.cat([a.layout.fps, b.layout.fps]),
    )
    mask = None
    if a.loss_mask is not None and b.loss_mask is not None:
        mask = torch.cat([a.loss_mask, b.loss_mask])
    clean, text = torch.cat([a.clean, b.clean]), torch.cat([a.text, b.text])
    return Prepared(clean, text, layout, a.sample_ids + b.sample_ids, mask)


def gradients(packs: list[Prepared], num_tokens: int) -> tuple[float, dict[str, torch.Tensor]]:
    network = make_network()
    loss = add_gradients(
        network,
        OBJECTIVE,
        packs,
        num_tokens=num_tokens,
        seed=3,
        step=4,
        autocast=contextlib.nullcontext(),
    )
    grads = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
    assert len(grads) == len(list(network.parameters()))
    return loss, grads


@pytest.mark.parametrize("masked", [False, True])
def test_two_packs_are_one_pack_of_both(masked):
    a = make_pack("ab", [(3, 2, 2), (1, 2, 1)], [3, 0], 0, masked=masked)
    b = make_pack("c", [(2, 2, 3)], [5], 1, masked=masked)
    both = concatenated(a, b)
    counted = 14 + 12 if both.loss_mask is None else int(both.loss_mask.sum())
    loss, grads = gradients([a, b], counted)
    expected_loss, expected = gradients([both], counted)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, expected[name], atol=1e-12, rtol=1e-10)

    # And that is the mean over tokens, written out.
    sigma, noise = draws(OBJECTIVE, 3, 4, both)
    rows = both.layout.segment
    noisy = both.clean + sigma[rows, None] * noise
    s = OBJECTIVE.precondition(sigma)
    raw = make_network()(s.c_in[rows, None] * noisy, s.c_noise, both.text, both.layout)
    target = (both.clean - s.c_skip[rows, None] * noisy) / s.c_out[rows, None]
    errors = (raw - target).square().mean(1)
    kept = errors if both.loss_mask is None else errors[both.loss_mask.bool()]
    assert loss == pytest.approx(float(kept.mean().detach()), rel=1e-6)


def test_masked_tokens_count_nothing():
    pack = make_pack("ab", [(3, 2, 2), (1, 2, 1)], [3, 0], 0, masked=True)
    assert pack.loss_mask is not None
    sigma, noise = draws(OBJECTIVE, 0, 0, pack)
    outputs = []

    def network(x, c_noise, text, layout):
        outputs.append(torch.zeros_like(x).requires_grad_())
        return outputs[-1]

    weighted_loss(network, OBJECTIVE, pack, sigma, noise).backward()
    touched = outputs[0].grad.abs().sum(1) > 0
    assert torch.equal(touched, pack.loss_mask.bool()) and 0 < touched.sum() < len(touched)


def test_tokens_that_count_are_those_of_all_packs():
    whole = make_batch(None)
    masked = make_batch(torch.tensor([1, 0, 0, 1, 1, 0]))
    assert num_loss_tokens([whole], [None]) == 6
    assert num_loss_tokens([whole, masked, whole], [None] * 3) == 15


def make_batch(loss_mask: torch.Tensor | None) -> Batch:
    return Batch(
        grid=torch.tensor([[1, 2, 3]]),
        cu_seqlens=torch.tensor([0, 6]),
        fps=torch.tensor([24.0]),
        sample_ids=["a"],
        captions=["a film"],
        loss_mask=loss_mask,
    )


def test_text_is_dropped_as_often_as_asked():
    ids = [f"clip{i}" for i in range(20_000)]
    for probability in (0.1, 0.5):
        dropped = drop_text(0, 7, ids, probability)
        deviation = (probability * (1 - probability) / len(ids)) ** 0.5
        assert abs(sum(dropped) / len(ids) - probability) < 5 * deviation
    assert not any(drop_text(0, 7, ids, 0.0))
    assert drop_text(0, 7, ids, 0.5) != drop_text(0, 8, ids, 0.5)
    assert drop_text(0, 7, ids[5:6], 0.5) == drop_text(0, 7, ids, 0.5)[5:6]


def test_a_step_of_the_trainer(make_config, monkeypatch):
    """Dropped text, normalisation, clipping, averaging: all reach the weights."""
    optimizer = OptimizerConfig(lr=1e-3, warmup_steps=0, clip_grad_norm=1e-3)
    config = make_config(text_dropout=0.5, packs_per_step=2, steps=6, optimizer=optimizer)
    seen, norms = [], []
    inner_prepare, inner_step = prepare, trainer_module.Trainer._step

    def spying(batch, encoding, dropped, share, prefix, actionless):
        assert prefix is None and batch.actions is None
        seen.append((batch, dropped, inner_prepare(batch, encoding, dropped, share)))
        return seen[-1][2]

    def checked(self, batches):
        step, seen[:] = self.step, []
        network = copy.deepcopy(self.network)
        before = {n: t.clone() for n, t in self.ema.shadow.items()}
        loss, grad_norm, lr = inner_step(self, batches)
        assert len(batches) == len(seen) == 2
        for batch, dropped, prepared in seen:
            assert dropped == drop_text(config.seed, step, batch.sample_ids, 0.5)
            assert [n == 0 for n in prepared.layout.lens_text] == dropped
        one = concatenated(seen[0][2], seen[1][2])
        total = weighted_loss(network, OBJECTIVE, one, *draws(OBJECTIVE, config.seed, step, one))
        num_tokens = num_loss_tokens(batches, [None, None])
        (total / num_tokens).backward()
        assert num_tokens == one.layout.num_tokens
        assert loss == pytest.approx(float(total.detach()) / one.layout.num_tokens, rel=1e-4)
        grads = [p.grad for p in network.parameters() if p.grad is not None]
        assert grad_norm == pytest.approx(float(torch.nn.utils.get_total_norm(grads)), rel=1e-3)
        left = [p.grad for p in self.network.parameters() if p.grad is not None]
        norms.append((grad_norm, float(torch.nn.utils.get_total_norm(left))))
        decay = (2 + step) / (11 + step)
        for name, parameter in self.parameters.items():
            expected = decay * before[name] + (1 - decay) * parameter
            torch.testing.assert_close(self.ema.shadow[name], expected, atol=1e-6, rtol=1e-5)
        return loss, grad_norm, lr

    monkeypatch.setattr(trainer_module, "prepare", spying)
    monkeypatch.setattr(trainer_module.Trainer, "_step", checked)
    make_trainer(config).run()
    assert len(norms) == 6
    assert all(before > 1e-2 and after == pytest.approx(1e-3, rel=1e-2) for before, after in norms)


def test_only_matrices_decay():
    network = make_network()
    config = OptimizerConfig(lr=0.5, weight_decay=0.1)
    optimizer = make_optimizer(config, network)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in network.named_parameters():
        matrix = name.endswith("weight") and "norm" not in name
        factor = 1 - 0.5 * 0.1 if matrix else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor, rtol=1e-12, atol=0)
    assert "text.null" in before and "blocks.0.self_attention.norm_q.weight" in before


def test_ema_is_its_closed_form():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, dtype=torch.float64))
    values = [weight.detach().clone()]
    ema = EMA([("w", weight)], decay=0.6)
    for step in range(1, 31):
        weight.data.add_(torch.randn(4, dtype=torch.float64))
        values.append(weight.detach().clone())
        ema.update({"w": weight}, step)
    # shadow_n = sum over k of (1 - d_k) w_k times the product of all later d, with w_0 whole.
    decays = [0.0, *(min(0.6, (1 + k) / (10 + k)) for k in range(1, 31))]
    assert decays[1] == 2 / 11 and decays[30] == 0.6
    expected, product = torch.zeros(4, dtype=torch.float64), 1.0
    for value, decay in zip(reversed(values), reversed(decays), strict=True):
        expected += product * (1 - decay) * value
        product *= decay
    torch.testing.assert_close(ema.shadow["w"].double(), expected, rtol=1e-5, atol=1e-6)


def test_bf16_trains_as_fp32_does(make_config, tmp_path):
    losses = {}
    for precision in ("fp32", "bf16"):
        run = train(make_config(precision=precision, output=str(tmp_path / precision)))
        losses[precision] = [r["loss"] for r in read_metrics(run) if "loss" in r]
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.02)
    trainer = make_trainer(make_config(precision="bf16", output=str(tmp_path / "bf16"), steps=7))
    seen = []

    def watch(module, args, out):
        seen.append(out.dtype)

    with trainer.loader, trainer.held_out, trainer_module.RunProgress(trainer.console) as progress:
        trainer.progress = progress
        trainer._build()
        block = trainer.network.blocks["0"]
        block.mlp.up.register_forward_hook(watch)  # pyright: ignore
        trainer._step(list(islice(trainer.loader, 1)))
    assert seen == [torch.bfloat16]
    assert {p.dtype for p in trainer.parameters.values()} == {torch.float32}
