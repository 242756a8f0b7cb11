"""Wiring tier: which tokenizer a run uses, and what it tells generation."""

from dataclasses import replace

import pytest
import torch

from common.errors import ConfigError, DataError
from dataloading.config import CurriculumStage, LoaderConfig
from inference.loading import load_generator
from models.dit import DiTConfig
from models.moviegen import MovieGenConfig
from models.text.hub import HubTextConfig
from models.tokenizers.causal import CausalConfig, CausalTokenizer
from parallel import checkpoint
from tests.dataloading.folder import Clip, make_folder
from tests.training.runs import make_trainer, train
from training.config import TokenizerSettings
from training.setup import compression_of, get_tokenizer

CPU = torch.device("cpu")


def test_a_tokenizer_of_other_settings_is_not_kept(make_config, tmp_path):
    # What a run leaves that was killed before its first checkpoint.
    config = make_config()
    stale = get_tokenizer(config, tmp_path / "run" / "tokenizer", None, CPU)
    fit = CausalConfig(channels=6, widths=[8], decoder_blocks=1)
    wider = make_config(tokenizer=replace(config.tokenizer, fit=fit), steps=2)
    run = train(wider)
    used = load_generator(run).encoding.tokenizer
    assert stale.channels == 4 and used.channels == 6
    assert CausalTokenizer.load(run / "tokenizer").equals(used)  # pyright: ignore


def test_another_tokenizer_path_is_refused_when_a_run_goes_on(make_config, tmp_path):
    config = make_config(steps=2)
    first = get_tokenizer(config, tmp_path / "first", None, CPU)
    other = get_tokenizer(replace(config, seed=5), tmp_path / "other", None, CPU)
    assert not first.equals(other)
    given = replace(config, tokenizer=TokenizerSettings(path=str(tmp_path / "first")))
    train(given)
    changed = replace(given, tokenizer=TokenizerSettings(path=str(tmp_path / "other")), steps=3)
    with pytest.raises(ConfigError, match=r"tokenizer.path=.*other holds another tokenizer"):
        make_trainer(changed)
    # A copy will do, and so will the checkpoint's own.
    first.save(tmp_path / "copy")
    train(replace(given, tokenizer=TokenizerSettings(path=str(tmp_path / "copy")), steps=3))
    run = train(replace(given, tokenizer=TokenizerSettings(), steps=4))
    (_, newest) = checkpoint.found(run / "checkpoints")
    assert checkpoint.read_state(newest)["step"] == 4


def test_factors_are_those_of_the_checkpoint_s_tokenizer(make_config, tmp_path):
    config = make_config()
    fit = CausalConfig(temporal=2, spatial=4, haar=[2, 4], channels=4, widths=[8], decoder_blocks=0)
    tokenizer = CausalTokenizer(fit)
    tokenizer.save(tmp_path / "step" / "tokenizer")
    compression = compression_of(config, tmp_path / "step")
    assert (compression.temporal, compression.spatial) == (2, 4)


def test_generation_defaults_to_what_training_saw(make_config, tmp_path):
    clips = [
        Clip(clip_id=f"clip{i}", num_frames=12, width=64, height=32, fps=fps)
        for i, fps in enumerate([12.0, 24.0, 24.0])
    ]
    folder = make_folder(tmp_path / "wide", {"a": clips})
    data = LoaderConfig(
        path=str(folder), token_budget=64, num_frames=[1, 5, 33], size=[64, 64], resize="area"
    )
    spec = load_generator(train(make_config(data=data, steps=1))).spec
    assert (spec.num_frames, spec.width, spec.height, spec.fps) == (5, 96, 48, 24.0)


@pytest.mark.parametrize(
    "model",
    [
        DiTConfig(
            hidden_size=32,
            num_layers=1,
            num_heads=2,
            absolute_positions="learned",
            max_grid=[1, 8, 3],
        ),
        MovieGenConfig(
            hidden_size=32,
            num_layers=1,
            num_heads=2,
            num_kv_heads=1,
            ffn_size=8,
            max_grid=[1, 8, 3],
        ),
    ],
)
def test_positions_that_samples_pass_are_refused_before_work(make_config, model):
    said = (
        r"max_grid=\[1, 8, 3\] is too small for samples of up to \[2, 3, 4\] patches.*=\[2, 8, 4\]"
    )
    with pytest.raises(ConfigError, match=said):
        make_trainer(make_config(model=model))
    make_trainer(make_config(model=replace(model, max_grid=[2, 3, 4])))
    # A later stage of the curriculum counts too.
    config = make_config(model=replace(model, max_grid=[1, 3, 4]))
    stage = CurriculumStage(from_pack=9, num_frames=[5])
    later = replace(config, data=replace(config.data, num_frames=[1], curriculum=[stage]))
    with pytest.raises(ConfigError, match=r"samples of up to \[2, 3, 4\]"):
        make_trainer(later)
    make_trainer(replace(config, data=replace(config.data, num_frames=[1])))


def test_a_text_encoder_that_is_missing_is_told_before_work(make_config, tmp_path):
    pytest.importorskip("transformers")
    config = make_config(text=HubTextConfig(path=str(tmp_path / "nothing")))
    with pytest.raises(DataError, match=r"no text encoder can be read from text.path=.*nothing"):
        make_trainer(config)
    assert not (tmp_path / "run").exists()
