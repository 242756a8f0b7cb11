"""Gloo tier: runs of other tasks over ranks, against the same run in one process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dataloading.config import LoaderConfig
from models.autoregressive import AutoregressiveConfig
from models.dit import DiTConfig
from models.lora import LoRAConfig
from models.objectives.config import ObjectiveConfig
from models.tokenizers.causal import CausalConfig
from tests.distributed.test_training import losses, run_here, weights
from tests.training.runs import make_curated, small_config, train
from training.config import ParallelConfig, TokenizerSettings
from training.prefix import PrefixConfig

SHAPE: dict[str, Any] = {"hidden_size": 32, "num_layers": 2, "num_heads": 4}


@pytest.fixture(scope="module")
def curated(tmp_path_factory) -> Path:
    return make_curated(tmp_path_factory.mktemp("curated"))


def assert_over_ranks_as_alone(worlds, config, tmp_path: Path, ulysses: int, ring: int) -> None:
    alone = train(replace(config, output=str(tmp_path / "alone")))
    over = tmp_path / "over"
    parallel = ParallelConfig(ulysses=ulysses, ring=ring, timeout_s=60)
    worlds[2].run(run_here, replace(config, output=str(over), parallel=parallel))
    assert losses(over) == pytest.approx(losses(alone), rel=1e-5)
    expected = weights(alone)
    for name, tensor in weights(over).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(("ulysses", "ring"), [(1, 2), (2, 1)])
def test_samples_whose_beginning_is_given(worlds, curated, tmp_path, ulysses, ring):
    config = small_config(
        curated,
        tmp_path,
        model=DiTConfig(**SHAPE, prefix=True),
        prefix=PrefixConfig(shares=[1.0, 1.0]),
        packs_per_step=2,
        steps=3,
    )
    assert_over_ranks_as_alone(worlds, config, tmp_path, ulysses, ring)


@pytest.mark.parametrize(("ulysses", "ring"), [(1, 2), (2, 1), (1, 1)])
def test_discrete_tokens(worlds, curated, tmp_path, ulysses, ring):
    data = LoaderConfig(
        path=str(curated), token_budget=192, num_frames=[1, 5], size=[64, 48], fps=12.0
    )
    fit = CausalConfig(channels=3, levels=[8, 6, 5], widths=[8], decoder_blocks=1)
    config = small_config(
        curated,
        tmp_path,
        data=data,
        model=AutoregressiveConfig(**SHAPE, num_kv_heads=2, ffn_size=48),
        objective=ObjectiveConfig(target="next_token"),
        tokenizer=TokenizerSettings(fit=fit, fit_videos=8, fit_steps=2),
        packs_per_step=2,
        steps=3,
    )
    assert_over_ranks_as_alone(worlds, config, tmp_path, ulysses, ring)


def test_low_rank_differences(worlds, curated, tmp_path):
    start = train(small_config(curated, tmp_path / "start", model=DiTConfig(**SHAPE), steps=2))
    config = small_config(
        curated,
        tmp_path,
        model=DiTConfig(**SHAPE),
        checkpoint=str(start),
        lora=LoRAConfig(rank=2),
        packs_per_step=2,
        steps=3,
    )
    assert_over_ranks_as_alone(worlds, config, tmp_path, 1, 2)
