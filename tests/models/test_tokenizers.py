"""Wiring tier: our tokenizer: exactness, causality, pieces and tiles, and what training gains."""

import pytest
import torch

from common.errors import ConfigError, DataError
from models.tokenizers import haar
from models.tokenizers.base import latent_shape, mean_psnr_db, psnr_db
from models.tokenizers.causal import CausalConfig, CausalTokenizer, to_pixels
from models.tokenizers.dct import BlockDCT
from models.tokenizers.fit import fit_tokenizer
from models.tokenizers.layers import Stream
from models.tokenizers.pieces import tiles
from models.tokenizers.recipe import RecipeConfig
from tests.models.memory import PeakMemory


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


def recipe(steps: int, **changes) -> RecipeConfig:
    values = {"lr": 1e-2, "l1": 0.0, "l2": 1.0, "perceptual": 0.0, "kl": 0.0, **changes}
    return RecipeConfig(steps=steps, **values)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_haar_is_orthonormal_and_ordered(size):
    matrix = haar.haar_matrix(size)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(size, dtype=torch.float64))
    torch.testing.assert_close(matrix[0], torch.full((size,), size**-0.5, dtype=torch.float64))
    if size >= 2:  # The second row compares the first half with the second.
        assert (matrix[1, : size // 2] > 0).all() and (matrix[1, size // 2 :] < 0).all()


def test_haar_blocks_invert_and_keep_energy():
    video = torch.randn(2, 3, 9, 16, 24)
    matrix = haar.block_matrix(4, 8)
    coefficients = haar.forward(video, 4, 8, matrix, first=True)
    assert coefficients.shape == (2, 3 * 256, 3, 2, 3)
    again = haar.inverse(coefficients, 4, 8, matrix, first=True)
    torch.testing.assert_close(again, video)
    energy = coefficients[:, :, 1:].square().sum()
    torch.testing.assert_close(energy, video[:, :, 1:].square().sum())
    rest = haar.forward(video[:, :, 1:], 4, 8, matrix, first=False)
    torch.testing.assert_close(rest, coefficients[:, :, 1:])
    torch.testing.assert_close(haar.inverse(rest, 4, 8, matrix, first=False), video[:, :, 1:])


def test_all_channels_lose_nothing():
    config = CausalConfig(
        temporal=2, spatial=2, haar=[2, 2], channels=24, widths=[4], decoder_blocks=0
    )
    videos = [torch.randint(0, 256, (5, 16, 16, 3), dtype=torch.uint8) for _ in range(4)]
    tokenizer = fit_tokenizer(config, videos, recipe(0))
    assert torch.equal(tokenizer.decode(tokenizer.encode(videos[0])), videos[0])


@pytest.mark.parametrize("whitening", [0.0, 0.5, 1.0])
def test_latents_have_zero_mean_and_unit_variance(whitening):
    videos = footage(24)
    config = CausalConfig(channels=6, widths=[8], whitening=whitening)
    tokenizer = fit_tokenizer(config, videos, recipe(0))
    flat = torch.cat([tokenizer.encode(v).flatten(1) for v in videos], dim=1)
    torch.testing.assert_close(flat.mean(1), torch.zeros(6), atol=2e-3, rtol=0)
    variance = flat.var(1)
    assert abs(variance.mean() - 1) < 1e-2
    spread = tokenizer.deviation ** (1 - whitening)
    torch.testing.assert_close(
        variance.sqrt() / spread, (variance.sqrt() / spread).mean().expand(6), rtol=1e-2, atol=0
    )


@pytest.fixture(scope="module")
def trained():
    return fit_tokenizer(CausalConfig(channels=8, widths=[24]), footage(24), recipe(60))


def test_decoder_training_helps_on_other_footage(trained):
    linear = fit_tokenizer(CausalConfig(channels=8, widths=[24]), footage(24), recipe(0))
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


# Every kind of layer: both networks, steps in time and in space, attention in both.
WHOLE = CausalConfig(
    channels=6,
    widths=[8, 12, 16],
    haar=[2, 2],
    encoder_blocks=1,
    decoder_blocks=1,
    attention_blocks=1,
    attention_window=2,
    attention_frames=3,
)


@pytest.fixture(scope="module")
def whole():
    """All layers, with weights far from their start, where nothing could be told apart."""
    tokenizer = fit_tokenizer(WHOLE, footage(4), recipe(0))
    torch.manual_seed(5)
    for parameter in tokenizer.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return tokenizer


def in_one_piece(tokenizer, video):
    pixels = to_pixels(video)[None]
    raw, _ = tokenizer.posterior(pixels, Stream(keeps=False), first=True)
    return raw[0], tokenizer.reconstruct(raw, Stream(keeps=False), first=True)[0]


def test_every_layer_is_causal(whole):
    video = footage(1, num_frames=29)[0]
    raw, made = in_one_piece(whole, video)
    for last in (1, 9, 17):
        changed = video.clone()
        changed[last:] = 255 - changed[last:]
        other_raw, other = in_one_piece(whole, changed)
        kept = 1 + (last - 1) // 4
        torch.testing.assert_close(other_raw[:, :kept], raw[:, :kept], atol=1e-5, rtol=0)
        torch.testing.assert_close(other[:, :last], made[:, :last], atol=1e-5, rtol=0)
        assert (other_raw[:, kept:] - raw[:, kept:]).abs().max() > 0.1
        # Each layer that looks back does: frames after the change depend on those before it.
        swapped = video.clone()
        swapped[:last] = 255 - swapped[:last]
        assert (in_one_piece(whole, swapped)[0][:, kept] - raw[:, kept]).abs().max() > 1e-3


@pytest.mark.parametrize("sizes", [[1] * 29, [5, 24], [29], [2, 13, 0, 14]])
@pytest.mark.parametrize("piece", [1, 3])
def test_a_stream_is_the_whole(whole, sizes, piece):
    video = footage(1, num_frames=29)[0]
    raw, made = in_one_piece(whole, video)
    expected = (raw - whole.shift[:, None, None, None]) * whole.scale[:, None, None, None]
    whole.piece = piece
    latents = list(whole.encode_stream(video.split(sizes)))
    assert len(latents) == -(-8 // piece)
    torch.testing.assert_close(torch.cat(latents, dim=1), expected, atol=1e-5, rtol=0)
    frames = torch.cat(list(whole.decode_stream(expected.split([1, 2, 4, 1], dim=1))))
    error = (to_pixels(frames) - made.clamp(-1, 1)).abs().max()
    assert error <= 1.01 / 255, "half a level of rounding is 1/255"


def test_tiles_are_the_whole(whole):
    video = footage(1, num_frames=5, size=96)[0][:, :72]
    raw, made = in_one_piece(whole, video)
    expected = (raw - whole.shift[:, None, None, None]) * whole.scale[:, None, None, None]
    assert whole.config.halo == 4 and whole.config.grain == 2
    for tile in (2, 3, 6):
        whole.tile = tile
        torch.testing.assert_close(whole.encode(video), expected, atol=1e-5, rtol=0)
        frames = whole.decode(expected)
        assert (to_pixels(frames) - made.clamp(-1, 1)).abs().max() <= 1.01 / 255
    narrow = [t for t in tiles(9, 12, 2, 2, 2) if t.gives == ((4, 6), (4, 6))]
    assert narrow[0].sees == ((2, 8), (2, 8))


def test_a_longer_video_takes_no_more_memory(whole):
    whole.piece, whole.tile = 2, 64

    def peak(num_frames: int) -> int:
        frame = footage(1, num_frames=1)[0]
        with PeakMemory() as memory:
            latents = whole.encode_stream(frame for _ in range(num_frames))
            count = sum(part.shape[0] for part in whole.decode_stream(latents))
        assert count == num_frames
        return memory.peak_bytes

    short, long = peak(41), peak(401)
    assert short > 100_000 and long <= 1.05 * short


def test_the_whole_recipe_trains():
    losses = []
    settings = recipe(
        8, l1=1.0, l2=0.0, perceptual=0.1, kl=1e-2, adversarial=0.1, adversarial_from=2, batch=2
    )
    tokenizer = fit_tokenizer(
        WHOLE, footage(4), settings, on_step=lambda step, loss: losses.append(loss)
    )
    assert len(losses) == 8 and all(torch.tensor(losses).isfinite())
    moved = [n for n, p in tokenizer.named_parameters() if p.ndim > 1 and not p.any()]
    assert moved == [], "a part that no gradient reaches"


def test_more_than_a_dct_of_as_many_coefficients(trained):
    training, held_out = footage(24), footage(8, seed=1)
    dct = BlockDCT(4, 8, 8, training)
    assert dct.rows.shape == (8, 768)
    torch.testing.assert_close(dct.rows @ dct.rows.T, torch.eye(8), atol=1e-5, rtol=0)
    reference = sum(psnr_db(dct.reconstruct(v), v) for v in held_out) / len(held_out)
    assert 20 < reference < mean_psnr_db(trained, held_out)


def test_a_fit_is_reproducible_and_survives_the_disk(trained, tmp_path):
    again = fit_tokenizer(CausalConfig(channels=8, widths=[24]), footage(24), recipe(60))
    video = footage(1, seed=2)[0]
    assert torch.equal(again.encode(video), trained.encode(video))
    trained.save(tmp_path / "t")
    loaded = CausalTokenizer.load(tmp_path / "t")
    latents = loaded.encode(video)
    assert torch.equal(latents, trained.encode(video))
    assert torch.equal(loaded.decode(latents), trained.decode(latents))
    assert latents.shape == latent_shape(loaded, *video.shape[:3])


def test_flat_footage_is_no_trouble():
    flat = [torch.full((5, 16, 16, 3), 90, dtype=torch.uint8)] * 2
    tokenizer = fit_tokenizer(CausalConfig(channels=4, widths=[4]), flat, recipe(2))
    latents = tokenizer.encode(flat[0])
    assert latents.isfinite().all()
    assert torch.equal(tokenizer.decode(latents), flat[0])


def test_errors_name_the_mend(tmp_path):
    with pytest.raises(ConfigError, match="tokenizer temporal must be a power of two, got 3"):
        CausalConfig(temporal=3)
    with pytest.raises(ConfigError, match="channels must be 1 to 768, got 800"):
        CausalConfig(channels=800)
    with pytest.raises(ConfigError, match="widths must be 1 positive numbers, got .0."):
        CausalConfig(widths=[0])
    with pytest.raises(ConfigError, match="decoder_blocks must not be negative, got -1"):
        CausalConfig(decoder_blocks=-1)
    with pytest.raises(DataError, match="no tokenizer in"):
        CausalTokenizer.load(tmp_path)
    tokenizer = CausalTokenizer(CausalConfig(channels=2, widths=[4]))
    with pytest.raises(
        ValueError, match="4 frames cannot be tokenized: they must be 1 plus a multiple of 4"
    ):
        tokenizer.encode(torch.zeros(4, 16, 16, 3, dtype=torch.uint8))
    tokenizer.save(tmp_path / "t")
    (tmp_path / "t" / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(DataError, match="is damaged"):
        CausalTokenizer.load(tmp_path / "t")


def test_psnr_of_a_known_error():
    a = torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    assert psnr_db(a, a) == float("inf")
    assert abs(psnr_db(a, a + 1) - 48.1308) < 1e-3


def test_what_is_no_tokenizer_is_named(tmp_path):
    CausalTokenizer(CausalConfig(channels=2, widths=[4])).save(tmp_path / "t")
    config = tmp_path / "t" / "config.json"
    for content in ("[]", "3", '"wavelet"', "null"):
        config.write_text(content)
        with pytest.raises(DataError, match=f"{tmp_path / 't'} is damaged.*no JSON object"):
            CausalTokenizer.load(tmp_path / "t")
    config.unlink()
    config.mkdir()
    with pytest.raises(DataError, match=f"{tmp_path / 't'} cannot be read"):
        CausalTokenizer.load(tmp_path / "t")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="file cannot be read"):
        CausalTokenizer.load(tmp_path / "file")
