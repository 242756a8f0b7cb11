"""Wiring tier: a tokenizer trained by the command's own path, and a run that uses it."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from common.errors import ConfigError
from inference.loading import load_generator
from models.tokenizers.causal import CausalConfig
from models.tokenizers.load import load_tokenizer
from models.tokenizers.recipe import RecipeConfig
from tests.training.runs import train
from training.config import TokenizerSettings
from training.tokenizer import TokenizerConfig, TokenizerRun


@pytest.fixture
def settings(make_config, tmp_path):
    return TokenizerConfig(
        data=replace(make_config().data, token_budget=128),
        output=str(tmp_path / "tokenizer"),
        tokenizer=CausalConfig(channels=4, widths=[8], encoder_blocks=1),
        recipe=RecipeConfig(steps=4, batch=2),
        fit_videos=6,
    )


def test_a_trained_tokenizer_serves_a_run(settings, make_config, tmp_path):
    quality = TokenizerRun(settings, Console(quiet=True)).run()
    assert quality.windows > 0 and quality.psnr_db is not None and quality.psnr_db > 15
    assert quality.ssim is not None and 0 < quality.ssim <= 1
    text = (tmp_path / "tokenizer/metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [r["step"] for r in lines] == [1, 2, 3, 4, 4]
    assert lines[-1]["psnr_db"] == quality.psnr_db
    again = TokenizerRun(replace(settings, output=str(tmp_path / "again")), Console(quiet=True))
    again.run()
    made = load_tokenizer(tmp_path / "tokenizer")
    assert made.equals(load_tokenizer(tmp_path / "again")), "a function of settings and data alone"
    given = TokenizerSettings(path=settings.output)
    run = train(make_config(tokenizer=given, steps=1))
    assert load_generator(run).encoding.tokenizer.equals(made)


def test_what_is_there_is_not_overwritten(settings, tmp_path):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"output=.* is there already"):
        TokenizerRun(settings, Console(quiet=True))


def test_the_plan_names_clips_and_steps(settings):
    lines = TokenizerRun(settings, Console(quiet=True)).plan()
    assert lines[0].startswith("data: 4 clips") and lines[1].startswith("4 steps of 2 windows")
