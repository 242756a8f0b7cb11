"""Wiring tier: which frames are given in training, what then counts, and runs that do so."""

from dataclasses import replace

import pytest
import torch

from common.errors import ConfigError
from dataloading.batch import Batch, cumulative
from inference.loading import load_generator
from models.dit import DiTConfig
from models.objectives.loss import Objective
from tests.training.runs import make_trainer, train
from training.config import SamplesConfig
from training.metrics import read_metrics
from training.prefix import PrefixConfig, draw_prefix, loss_mask
from training.step import draws, num_loss_tokens, prepare

NETWORK = DiTConfig(hidden_size=32, num_layers=1, num_heads=2, prefix=True)


def make_batch(grids: list[tuple[int, int, int]]) -> Batch:
    lens = [t * h * w for t, h, w in grids]
    return Batch(
        grid=torch.tensor(grids),
        cu_seqlens=cumulative(lens),
        fps=torch.full((len(grids),), 12.0),
        sample_ids=[f"clip{i}:0" for i in range(len(grids))],
        captions=[""] * len(grids),
    )


def test_lengths_come_as_often_as_asked():
    config = PrefixConfig(shares=[2.0, 0.0, 1.0, 1.0], sigma_median=0.05, sigma_spread=2.0)
    batch = make_batch([(9, 1, 1)] * 20_000)
    prefix = draw_prefix(config, 0, 3, batch)
    assert prefix is not None
    for length, share in ((0, 0.5), (1, 0.0), (2, 0.25), (3, 0.25)):
        deviation = (share * (1 - share) / 20_000) ** 0.5
        assert abs(prefix.lens.count(length) / 20_000 - share) <= 5 * deviation
    logs = prefix.sigma.log()
    assert float(logs.mean().exp()) == pytest.approx(0.05, rel=0.1)
    assert float(logs.std()) == pytest.approx(2.0, rel=0.05)
    # Alone, or in another step.
    alone = draw_prefix(config, 0, 3, replace(batch, **_only(batch, 7)))
    assert alone is not None and alone.lens == prefix.lens[7:8]
    assert torch.equal(alone.sigma, prefix.sigma[7:8])
    other = draw_prefix(config, 0, 4, batch)
    assert other is not None and other.lens != prefix.lens


def _only(batch: Batch, i: int) -> dict:
    return {
        "grid": batch.grid[i : i + 1],
        "cu_seqlens": cumulative([int(batch.grid[i].prod())]),
        "fps": batch.fps[i : i + 1],
        "sample_ids": batch.sample_ids[i : i + 1],
        "captions": [""],
    }


def test_a_short_sample_keeps_its_last_frame():
    prefix = draw_prefix(PrefixConfig(shares=[0, 0, 1]), 0, 0, make_batch([(1, 2, 2), (2, 1, 1)]))
    assert prefix is not None and prefix.lens == (0, 1)
    assert draw_prefix(PrefixConfig(sigma_median=0.0), 0, 0, make_batch([(3, 1, 1)])) is None
    clean = draw_prefix(PrefixConfig(shares=[0, 1], sigma_median=0), 0, 0, make_batch([(3, 1, 1)]))
    assert clean is not None and not clean.sigma.any()


def test_given_frames_do_not_count():
    batch = make_batch([(3, 1, 2), (1, 2, 1), (2, 1, 1)])
    prefix = draw_prefix(PrefixConfig(shares=[0, 0, 1]), 0, 0, batch)
    counts = [False, False, False, False, True, True, True, True, False, True]
    mask = loss_mask(batch, prefix)
    assert mask is not None and mask.tolist() == counts
    assert num_loss_tokens([batch, batch], [prefix, None]) == 5 + 10
    masked = replace(batch, loss_mask=torch.tensor([True] * 5 + [False] * 5))
    assert num_loss_tokens([masked], [prefix]) == 1


def test_a_run_learns_to_go_on(make_config):
    config = make_config(model=NETWORK, prefix=PrefixConfig(shares=[0.0, 1.0]), steps=2)
    trainer = make_trainer(config)
    seen = []
    inner = trainer._step

    def spying(batches):
        (batch,) = batches
        prefix = draw_prefix(config.prefix, config.seed, trainer.step, batch)
        prepared = prepare(batch, trainer.encoding, [False] * batch.num_samples, prefix=prefix)
        assert prefix is not None
        assert prefix.lens == tuple(min(t - 1, 1) for t, _, _ in batch.grid.tolist())
        # At first the network says 0: the loss is that of c_skip * x, where nothing is given.
        sigma, noise = draws(Objective(config.objective), config.seed, trainer.step, prepared)
        objective = trainer.objective
        assert isinstance(objective, Objective)
        s = objective.precondition(sigma)
        x = prepared.clean + prepared.layout.spread(sigma)[:, None] * noise
        error = prepared.layout.spread(s.c_skip)[:, None] * x - prepared.clean
        weight = prepared.layout.spread(objective.weight(sigma))
        counts = ~prepared.layout.in_prefix
        expected = float((weight * error.square().mean(-1))[counts].mean())
        loss, grad_norm, lr = inner(batches)
        if not seen:
            assert loss == pytest.approx(expected, rel=1e-4)
        seen.append(prefix)
        return loss, grad_norm, lr

    trainer._step = spying
    trainer.run()
    assert len(seen) == 2
    run = trainer.folder.path
    assert all(r["val_loss"] > 0 for r in read_metrics(run) if "val_loss" in r)
    assert load_generator(run).spec.prefix_lens == [1]


def test_the_same_weights_however_it_is_packed_and_resumed(make_config, tmp_path):
    prefix = PrefixConfig(shares=[1.0, 1.0])
    whole = train(make_config(tmp_path / "whole", model=NETWORK, prefix=prefix, steps=3))
    for steps in (2, 3):
        train(make_config(tmp_path / "parts", model=NETWORK, prefix=prefix, steps=steps))
    losses = [
        [r["loss"] for r in read_metrics(run) if "loss" in r] for run in (whole, tmp_path / "parts")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 3


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"prefix": PrefixConfig(shares=[1, 1])}, "add model.prefix=true"),
        ({"model": NETWORK}, "model.prefix=true, but no sample is given frames"),
        (
            {"model": NETWORK, "prefix": PrefixConfig(shares=[0, 1]), "samples.every": 5},
            "samples.every=5 makes videos from text alone",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(make_config, asked, message):
    if asked.pop("samples.every", None):
        asked["samples"] = SamplesConfig(every=5)
    with pytest.raises(ConfigError, match=message):
        make_config(**asked)


@pytest.mark.parametrize("shares", [[], [0.0, 0.0], [-1.0, 2.0]])
def test_shares_that_share_nothing_are_refused(shares):
    with pytest.raises(ConfigError, match="prefix.shares must not be negative, and not all 0"):
        PrefixConfig(shares=shares)
