"""Wiring tier: the error on held-out windows."""

import io
import math
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from common.errors import ConfigError
from models.encoding import Encoding
from models.objectives.config import ObjectiveConfig
from models.objectives.loss import Objective
from models.text.hashed import HashedTextConfig, HashedTextEncoder
from models.tokenizers.causal import CausalConfig
from models.tokenizers.fit import fit_tokenizer
from models.tokenizers.recipe import RecipeConfig
from tests.dataloading.test_loader import loader
from tests.training.runs import make_trainer
from training.config import SamplesConfig, ValidationConfig
from training.metrics import read_metrics
from training.validation import validate

FIT = CausalConfig(channels=4, widths=[4], decoder_blocks=0)


@pytest.fixture(scope="module")
def parts(curated):
    with loader(curated, split="val", size=[64, 48], token_budget=64) as source:
        batches = list(source)
    videos = [video for batch in batches for video in batch.frames or []]
    encoding = Encoding(
        tokenizer=fit_tokenizer(FIT, videos, RecipeConfig(steps=0)),
        text=HashedTextEncoder(HashedTextConfig(dim=16)),
        patch=(1, 2, 2),
        sigma_data=0.5,
        device=torch.device("cpu"),
    )
    return Objective(ObjectiveConfig()), encoding, batches


def zero(x, c_noise, text, layout):
    return torch.zeros_like(x)


def test_a_level_s_error_does_not_depend_on_the_others(parts):
    objective, encoding, batches = parts
    both = validate(zero, objective, encoding, batches, [0.3, 1.0])
    alone = validate(zero, objective, encoding, batches, [1.0])
    turned = validate(zero, objective, encoding, batches, [1.0, 0.3])
    assert both is not None and alone is not None and turned is not None
    assert both.per_sigma[1.0] == alone.per_sigma[1.0]
    assert both.per_sigma == turned.per_sigma
    assert both.loss == pytest.approx(sum(both.per_sigma.values()) / 2)


def test_no_window_is_no_number(parts):
    objective, encoding, _ = parts
    assert validate(zero, objective, encoding, [], [0.3]) is None


def test_what_is_compared_with_is_encoded_in_full_precision(parts):
    _, encoding, batches = parts
    frames = batches[0].frames
    expected = encoding.tokens(frames)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = encoding.tokens(frames)
    assert got.dtype == torch.float32 and torch.equal(got, expected)


def test_levels_are_distinct():
    for sigmas in ([1.0, 1.0], [1.0, 1.0000001], [math.inf], [math.nan], []):
        with pytest.raises(ConfigError, match="validation.sigmas must"):
            ValidationConfig(sigmas=sigmas)


def test_a_run_without_held_out_windows(make_config):
    config = make_config(samples=SamplesConfig(every=2))
    config = replace(config, data=replace(config.data, num_frames=[25], token_budget=90), steps=2)
    said = io.StringIO()
    trainer = make_trainer(config, Console(file=said, width=300))
    assert any("nothing is held out" in line for line in trainer.plan())
    trainer.run()
    assert said.getvalue().count("nothing is held out") == 1
    records = read_metrics(trainer.folder.path)
    assert [r["step"] for r in records] == [1, 2]
    assert not any("val_loss" in r for r in records)
