"""Wiring tier: the wavelet tokenizer: exactness, causality, and what its decoder gains."""

import pytest
import torch

from common.errors import ConfigError, DataError
from models.tokenizers import haar
from models.tokenizers.base import latent_shape, mean_psnr_db, psnr_db
from models.tokenizers.fit import fit_wavelet
from models.tokenizers.wavelet import WaveletConfig, WaveletTokenizer


def footage(count: int, num_frames: int = 9, size: int = 32, seed: int = 0) -> list[torch.Tensor]:
    """Smooth moving patterns with edges: compressible, as real footage is."""
    generator = torch.Generator().manual_seed(seed)
    t, y, x = torch.meshgrid(
        *[torch.arange(n, dtype=torch.float32) for n in (num_frames, size, size)], indexing="ij"
    )
    videos = []
    for _ in range(count):
        a, b, c, d = torch.rand(4, generator=generator)
        wave = torch.sin(0.2 * (a * x + b * y) + c * t) + 0.5 * ((x + 2 * t * d) % 16 > 8)
        channels = torch.stack([wave, wave.roll(3, 1), -wave], dim=-1)
        videos.append(((channels + 2) * 50).clamp(0, 255).to(torch.uint8))
    return videos


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_haar_is_orthonormal_and_ordered(size):
    matrix = haar.haar_matrix(size)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(size, dtype=torch.float64))
    torch.testing.assert_close(matrix[0], torch.full((size,), size**-0.5, dtype=torch.float64))
    if size >= 2:  # The second row compares the first half with the second.
        assert (matrix[1, : size // 2] > 0).all() and (matrix[1, size // 2 :] < 0).all()


def test_haar_blocks_invert_and_keep_energy():
    video = torch.randn(3, 9, 16, 24)
    matrix = haar.block_matrix(4, 8)
    blocks = haar.blocks(video.permute(1, 2, 3, 0), 4, 8)
    coefficients = haar.forward(blocks, matrix)
    assert coefficients.shape == (3 * 256, 3, 2, 3)
    torch.testing.assert_close(haar.inverse(coefficients, 4, 8, matrix), video)
    energy = coefficients[:, 1:].square().sum()
    torch.testing.assert_close(energy, video[:, 1:].square().sum())


def test_encoding_in_one_product_is_transform_then_projection(trained):
    for video in footage(2, num_frames=9, seed=3) + footage(1, num_frames=1):
        expected = trained.project(trained.coefficients(video))
        torch.testing.assert_close(trained.encode(video), expected, atol=2e-5, rtol=0)


def test_all_channels_lose_nothing():
    config = WaveletConfig(temporal=2, spatial=2, channels=24, decoder_width=4, decoder_blocks=0)
    videos = [torch.randint(0, 256, (5, 16, 16, 3), dtype=torch.uint8) for _ in range(4)]
    tokenizer = fit_wavelet(config, videos, steps=0)
    assert torch.equal(tokenizer.decode(tokenizer.encode(videos[0])), videos[0])


@pytest.mark.parametrize("whitening", [0.0, 0.5, 1.0])
def test_latents_have_zero_mean_and_unit_variance(whitening):
    videos = footage(24)
    config = WaveletConfig(channels=6, decoder_width=8, whitening=whitening)
    tokenizer = fit_wavelet(config, videos, steps=0)
    flat = torch.cat([tokenizer.encode(v).flatten(1) for v in videos], dim=1)
    torch.testing.assert_close(flat.mean(1), torch.zeros(6), atol=2e-3, rtol=0)
    variance = flat.var(1)
    assert abs(variance.mean() - 1) < 1e-2
    natural = (tokenizer.scale.square() * variance).sqrt()
    spread = natural ** (1 - whitening)
    torch.testing.assert_close(
        variance.sqrt() / spread, (variance.sqrt() / spread).mean().expand(6), rtol=1e-2, atol=0
    )


@pytest.fixture(scope="module")
def trained():
    return fit_wavelet(WaveletConfig(channels=8, decoder_width=24), footage(24), steps=60)


def test_decoder_training_helps_on_other_footage(trained):
    linear = fit_wavelet(WaveletConfig(channels=8, decoder_width=24), footage(24), steps=0)
    held_out = footage(8, seed=1)
    assert mean_psnr_db(trained, held_out) > mean_psnr_db(linear, held_out) + 0.3


def test_the_future_changes_nothing_before_it(trained):
    video = footage(1, num_frames=13)[0]
    for last in (1, 5, 9):
        changed = video.clone()
        changed[last:] = 255 - changed[last:]
        latents, other = trained.encode(video), trained.encode(changed)
        kept = 1 + (last - 1) // 4
        torch.testing.assert_close(latents[:, :kept], other[:, :kept], atol=1e-6, rtol=0)
        assert (latents[:, kept:] - other[:, kept:]).abs().max() > 0.1
        decoded, again = trained.decode(latents), trained.decode(other)
        assert (decoded[:last].int() - again[:last].int()).abs().max() <= 1
        # A prefix alone gives the prefix: an image is a video of one frame.
        torch.testing.assert_close(
            trained.encode(video[:last]), latents[:, :kept], atol=1e-6, rtol=0
        )


def test_a_fit_is_reproducible_and_survives_the_disk(trained, tmp_path):
    again = fit_wavelet(WaveletConfig(channels=8, decoder_width=24), footage(24), steps=60)
    video = footage(1, seed=2)[0]
    assert torch.equal(again.encode(video), trained.encode(video))
    trained.save(tmp_path / "t")
    loaded = WaveletTokenizer.load(tmp_path / "t")
    latents = loaded.encode(video)
    assert torch.equal(latents, trained.encode(video))
    assert torch.equal(loaded.decode(latents), trained.decode(latents))
    assert latents.shape == latent_shape(loaded, *video.shape[:3])


def test_flat_footage_is_no_trouble():
    flat = [torch.full((5, 16, 16, 3), 90, dtype=torch.uint8)] * 2
    tokenizer = fit_wavelet(WaveletConfig(channels=4, decoder_width=4), flat, steps=2)
    latents = tokenizer.encode(flat[0])
    assert latents.isfinite().all()
    assert torch.equal(tokenizer.decode(latents), flat[0])


def test_errors_name_the_mend(tmp_path):
    with pytest.raises(ConfigError, match="tokenizer.fit.temporal must be a power of two, got 3"):
        WaveletConfig(temporal=3)
    with pytest.raises(ConfigError, match="channels must be 1 to 768, got 800"):
        WaveletConfig(channels=800)
    with pytest.raises(ConfigError, match="decoder_width must be at least 1, got 0"):
        WaveletConfig(decoder_width=0)
    with pytest.raises(ConfigError, match="decoder_blocks must not be negative, got -1"):
        WaveletConfig(decoder_blocks=-1)
    with pytest.raises(DataError, match="no tokenizer in"):
        WaveletTokenizer.load(tmp_path)
    tokenizer = WaveletTokenizer(WaveletConfig(channels=2, decoder_width=4))
    with pytest.raises(ValueError, match="4 frames of 16x16 cannot be tokenized"):
        tokenizer.encode(torch.zeros(4, 16, 16, 3, dtype=torch.uint8))
    tokenizer.save(tmp_path / "t")
    (tmp_path / "t" / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(DataError, match="is damaged"):
        WaveletTokenizer.load(tmp_path / "t")


def test_psnr_of_a_known_error():
    a = torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    assert psnr_db(a, a) == float("inf")
    assert abs(psnr_db(a, a + 1) - 48.1308) < 1e-3


def test_what_is_no_tokenizer_is_named(tmp_path):
    WaveletTokenizer(WaveletConfig(channels=2, decoder_width=4)).save(tmp_path / "t")
    config = tmp_path / "t" / "config.json"
    for content in ("[]", "3", '"wavelet"', "null"):
        config.write_text(content)
        with pytest.raises(DataError, match=f"{tmp_path / 't'} is damaged.*no JSON object"):
            WaveletTokenizer.load(tmp_path / "t")
    config.unlink()
    config.mkdir()
    with pytest.raises(DataError, match=f"{tmp_path / 't'} cannot be read"):
        WaveletTokenizer.load(tmp_path / "t")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="file cannot be read"):
        WaveletTokenizer.load(tmp_path / "file")
