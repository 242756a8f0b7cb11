"""Wiring tier: autoencoders of diffusers, tiny and with random weights, behind our interface."""

import json
from typing import Any

import diffusers
import pytest
import torch

from common.errors import ConfigError, DataError
from models.tokenizers.base import latent_shape
from models.tokenizers.causal import to_pixels
from models.tokenizers.hub import HubTokenizer
from models.tokenizers.load import load_tokenizer


def wan(patched: bool = False) -> Any:
    torch.manual_seed(0)
    return diffusers.AutoencoderKLWan(  # pyright: ignore[reportPrivateImportUsage]
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.5, 0.5, 2.0, 1.0],
        **(
            {
                "patch_size": 2,
                "in_channels": 12,
                "out_channels": 12,
                "scale_factor_spatial": 16,
                "is_residual": True,
            }
            if patched
            else {}
        ),
    )


def cosmos(temporal: int, spatial: int) -> Any:
    torch.manual_seed(0)
    return diffusers.AutoencoderKLCosmos(  # pyright: ignore[reportPrivateImportUsage]
        latent_channels=4,
        encoder_block_out_channels=(8, 8, 8, 16),
        decode_block_out_channels=(8, 8, 16, 16),
        attention_resolutions=(8,),
        resolution=64,
        num_layers=1,
        patch_size=4,
        temporal_compression_ratio=temporal,
        spatial_compression_ratio=spatial,
        latents_mean=[0.01 * i for i in range(12)],
        latents_std=[1.0 + 0.1 * i for i in range(12)],
    )


def video(num_frames: int, size: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    small = torch.rand(num_frames, 4, 4, 3, generator=generator)
    return (small.repeat_interleave(size // 4, 1).repeat_interleave(size // 4, 2) * 255).byte()


def test_wan_gives_what_diffusers_gives():
    model = wan()
    tokenizer = HubTokenizer(model, "there")
    frames = video(9)
    latents = tokenizer.encode(frames)
    assert latents.shape == latent_shape(tokenizer, 9, 32, 32) == (4, 3, 4, 4)
    with torch.no_grad():
        raw = model.encode(to_pixels(frames)[None]).latent_dist.mode()[0]
        mean = torch.tensor(model.config.latents_mean)[:, None, None, None]
        std = torch.tensor(model.config.latents_std)[:, None, None, None]
        torch.testing.assert_close(latents, (raw - mean) / std, atol=1e-5, rtol=0)
        expected = model.decode(raw[None]).sample[0]
    made = tokenizer.decode(latents)
    assert made.shape == frames.shape
    assert (to_pixels(made) - expected.clamp(-1, 1)).abs().max() <= 1.01 / 255


@pytest.mark.parametrize("patched", [False, True])
def test_wan_streams(patched):
    tokenizer = HubTokenizer(wan(patched), "there")
    assert tokenizer.spatial == (16 if patched else 8) and tokenizer.streams
    frames = video(13)
    whole = tokenizer.encode(frames)
    parts = list(tokenizer.encode_stream(frames.split([2, 5, 6])))
    assert len(parts) == 4
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=0)
    again = list(tokenizer.decode_stream(whole.split(1, dim=1)))
    assert torch.equal(torch.cat(again), tokenizer.decode(whole))
    # An image is a video of one frame, and the future changes nothing.
    torch.testing.assert_close(tokenizer.encode(frames[:1]), whole[:, :1], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("temporal", "spatial"), [(4, 8), (8, 8), (8, 16)])
def test_cosmos_gives_what_diffusers_gives(temporal, spatial):
    model = cosmos(temporal, spatial)
    tokenizer = HubTokenizer(model, "there")
    frames = video(1 + 2 * temporal, 64)
    latents = tokenizer.encode(frames)
    assert latents.shape == latent_shape(tokenizer, *frames.shape[:3])
    with torch.no_grad():
        raw = model.encode(to_pixels(frames)[None]).latent_dist.mode()[0]
    # Statistics are per channel and latent frame, as in diffusers' own Cosmos pipelines.
    mean = torch.tensor(model.config.latents_mean).view(4, -1, 1, 1)
    std = torch.tensor(model.config.latents_std).view(4, -1, 1, 1)
    torch.testing.assert_close(latents, (raw - mean) / std, atol=1e-5, rtol=0)
    assert tokenizer.decode(latents).shape == frames.shape
    assert not tokenizer.streams
    parts = list(tokenizer.encode_stream(frames.split(3)))
    torch.testing.assert_close(torch.cat(parts, dim=1), latents)
    # More frames than there are statistics: the last stand for all after them.
    longer = tokenizer.encode(video(1 + 4 * temporal, 64))
    assert longer.shape[1] == 5 and longer.isfinite().all()


def test_bf16_is_near():
    frames = video(5)
    exact = HubTokenizer(wan(), "there").encode(frames)
    near = HubTokenizer(wan(), "there", "bf16").encode(frames)
    assert near.dtype == torch.float32
    assert 0 < (near - exact).abs().max() < 0.1 * exact.abs().max()


@pytest.mark.parametrize("inside", ["", "vae"])
def test_a_run_keeps_where_it_came_from(tmp_path, inside):
    weights = tmp_path / "weights"
    wan().save_pretrained(weights / inside)
    tokenizer = load_tokenizer(weights)
    assert isinstance(tokenizer, HubTokenizer)
    assert tokenizer.equals(HubTokenizer(wan(), "elsewhere"))
    assert not tokenizer.equals(HubTokenizer(wan(), "elsewhere", "bf16"))
    tokenizer.save(tmp_path / "kept")
    again = load_tokenizer(tmp_path / "kept")
    assert torch.equal(again.encode(video(5)), tokenizer.encode(video(5)))
    other = wan()
    other.encoder.conv_in.weight.data += 1
    other.save_pretrained(weights / inside)
    with pytest.raises(DataError, match="holds another tokenizer than"):
        load_tokenizer(tmp_path / "kept")


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "AutoencoderKL"}))
    with pytest.raises(DataError, match="holds a AutoencoderKL; known are AutoencoderKLCosmos"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(dict(wan().config)))
    with pytest.raises(DataError, match="holds a None|no tokenizer can be read"):
        HubTokenizer.load(str(tmp_path))
    short = wan()
    short.register_to_config(latents_mean=[0.0, 0.0])
    with pytest.raises(DataError, match="2 means and 4 deviations for 4 channels"):
        HubTokenizer(short, "there")
    wrong = wan()
    wrong.register_to_config(scale_factor_spatial=16)
    with pytest.raises(DataError, match="compress 4x8x8, its config.json says 4x16x16"):
        HubTokenizer(wrong, "there")


def test_without_diffusers_the_package_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ConfigError, match="needs the package diffusers"):
        HubTokenizer.load("someone/something")
