"""Wiring tier: discrete latents: the grid against its definition, and the tokenizer that has it."""

import pytest
import torch

from common.errors import ConfigError
from models.tokenizers.base import mean_psnr_db
from models.tokenizers.causal import CausalConfig, CausalTokenizer
from models.tokenizers.discrete import codes_of, num_codes, quantized, values_of
from models.tokenizers.fit import fit_tokenizer
from tests.models.test_tokenizers import footage, recipe

LEVELS = [8, 5, 2]


def test_every_code_has_its_place_on_the_grid():
    codes = torch.arange(num_codes(LEVELS)).view(4, 5, 4)
    values = values_of(codes, LEVELS, torch.float32)
    assert values.shape == (3, 4, 5, 4)
    assert torch.equal(codes_of(values, LEVELS), codes)
    assert torch.equal(quantized(values, LEVELS), values)
    for channel, levels in enumerate(LEVELS):
        grid = values[channel].unique()
        assert len(grid) == levels
        torch.testing.assert_close(grid, -grid.flip(0))
    # The first channel counts ones, the second eights, the third forties.
    assert torch.equal(values[1].flatten()[:8], values[1].flatten()[:1].expand(8))
    assert values[0].flatten()[:8].diff().min() > 0


def test_values_go_to_the_cell_they_lie_in():
    raw = torch.randn(3, 2, 3, 4, dtype=torch.float64) * 2
    on_grid = quantized(raw, LEVELS)
    for channel, levels in enumerate(LEVELS):
        cell = ((torch.tanh(raw[channel] / 1.55) + 1) / 2 * levels).floor()
        middle = 1.55 * torch.atanh((2 * cell + 1) / levels - 1)
        torch.testing.assert_close(on_grid[channel], middle)


def test_a_fine_grid_is_the_identity_and_the_gradient_goes_straight_through():
    raw = torch.randn(3, 2, 3, 4, dtype=torch.float64).clamp(-3, 3).requires_grad_()
    on_grid = quantized(raw, [1 << 18] * 3)
    torch.testing.assert_close(on_grid, raw, atol=3e-4, rtol=0)
    weight = torch.randn_like(raw)
    (quantized(raw, LEVELS) * weight).sum().backward()
    assert raw.grad is not None and torch.equal(raw.grad, weight)


def test_two_to_sixteen_levels_are_near_the_best_for_normal_values():
    # Least mean squared errors of N levels for a standard normal (Max 1960, table 1).
    x = torch.randn(1, 200_000, 1, 1, generator=torch.Generator().manual_seed(0))
    for levels, least in ((2, 0.3634), (4, 0.1175), (8, 0.03454), (16, 0.009497)):
        error = float((quantized(x, [levels]) - x).square().mean())
        assert 0.99 * least < error < 1.4 * least


@pytest.fixture(scope="module")
def trained() -> CausalTokenizer:
    config = CausalConfig(channels=6, levels=[8, 8, 8, 5, 5, 5], widths=[24])
    return fit_tokenizer(config, footage(24), recipe(60))


def test_training_helps_on_other_footage(trained):
    linear = fit_tokenizer(trained.config, footage(24), recipe(0))
    held_out = footage(8, seed=1)
    assert mean_psnr_db(trained, held_out) > mean_psnr_db(linear, held_out) + 0.3


def test_a_video_is_its_codes(trained, tmp_path):
    video = footage(1, num_frames=13, seed=3)[0]
    latents = trained.encode(video)
    codes = trained.codes(latents)
    assert trained.num_codes == 64_000
    assert codes.dtype == torch.int64 and codes.shape == (4, 4, 4)
    assert codes.min() >= 0 and codes.max() < 64_000 and len(codes.unique()) > 10
    assert torch.equal(trained.from_codes(codes), latents)
    # Causal, and the same in pieces.
    assert torch.equal(trained.codes(trained.encode(video[:5])), codes[:2])
    pieces = torch.cat(list(trained.encode_stream(video.split(3))), dim=1)
    assert torch.equal(trained.codes(pieces), codes)
    trained.save(tmp_path / "t")
    again = CausalTokenizer.load(tmp_path / "t")
    assert again.equals(trained) and torch.equal(again.codes(again.encode(video)), codes)
    assert torch.equal(again.decode(again.from_codes(codes)), trained.decode(latents))


def test_a_continuous_tokenizer_has_no_codes():
    assert CausalTokenizer(CausalConfig(channels=4, widths=[4])).num_codes == 0


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([8, 8], r"levels=\[8, 8\] must give each of channels=3 a number of values"),
        ([8, 8, 1], "at least 2"),
        ([4096, 4096, 2], "more than 2\\^24"),
    ],
)
def test_levels_that_cannot_be_are_refused(levels, message):
    with pytest.raises(ConfigError, match=message):
        CausalConfig(channels=3, levels=levels, widths=[4])
