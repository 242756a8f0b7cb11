"""Wiring tier: videos that begin with a given picture or with given frames."""

import numpy as np
import pytest
import torch
from PIL import Image

from common.errors import ConfigError
from common.media import write_video
from inference.config import GenerateConfig, SamplerConfig
from inference.generate import generate
from inference.loading import Generator
from inference.prefix import Given, cover, read_given
from inference.shape import VideoShape
from tests.inference.test_generate import make_generator
from tests.models.packs import random_weights

SHAPE = VideoShape(num_frames=9, width=32, height=32, fps=12.0)


def make(prefix_lens: list[int], patch: list[int] | None = None) -> Generator:
    generator = make_generator(patch or [1, 2, 2], prefix=True)
    generator.spec.prefix_lens[:] = prefix_lens
    random_weights(generator.network)
    return generator


def asked(**values) -> GenerateConfig:
    return GenerateConfig(checkpoint="run", prompt="x", output="x.mp4", **values)


@pytest.fixture
def picture(tmp_path) -> str:
    """40 x 20, red on the left and blue on the right, green in the middle 20."""
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :10, 0], pixels[:, 10:30, 1], pixels[:, 30:, 2] = 255, 255, 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    return str(tmp_path / "a.png")


@pytest.fixture
def film(tmp_path) -> str:
    """A second of 24 frames, each brighter than the one before."""
    grey = np.arange(24, dtype=np.uint8)[:, None, None, None] * 8 + 20
    write_video(tmp_path / "a.mp4", np.broadcast_to(grey, (24, 48, 48, 3)).copy(), fps=24.0)
    return str(tmp_path / "a.mp4")


@pytest.mark.parametrize("sampler", ["euler", "heun"])
@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
@pytest.mark.parametrize("schedule", ["karras", "flow"])
def test_a_video_begins_with_what_is_given(sampler, guidance_scale, schedule):
    generator = make([0, 1, 2])
    frames = torch.randint(0, 256, (5, 32, 32, 3), dtype=torch.uint8)
    wanted = generator.encoding.tokenizer.encode(frames)
    settings = SamplerConfig(
        name=sampler, num_steps=3, guidance_scale=guidance_scale, schedule=schedule
    )
    given = Given.of(frames, generator.encoding, 0.1)
    two = generate(generator, ["a film", "b"], SHAPE, settings, seed=0, given=given)
    (one,) = generate(generator, ["a film"], SHAPE, settings, seed=0, given=given)
    (free,) = generate(generator, ["a film"], SHAPE, settings, seed=0)
    torch.testing.assert_close(two[0].latents, one.latents, atol=1e-4, rtol=1e-4)
    for video in (*two, one):
        torch.testing.assert_close(video.latents[:, :2], wanted, atol=1e-5, rtol=1e-5)
    # The rest follows from it.
    assert not torch.allclose(one.latents[:, 2], free.latents[:, 2], atol=1e-3)


def test_a_temporal_patch_counts_whole_patches():
    generator = make([1], patch=[2, 2, 2])
    shape = VideoShape(num_frames=13, width=32, height=32, fps=12.0)
    frames = torch.randint(0, 256, (5, 32, 32, 3), dtype=torch.uint8)
    given = Given.of(frames, generator.encoding, 0.0)
    assert given.len_t == 1
    settings = SamplerConfig(num_steps=2)
    (video,) = generate(generator, ["x"], shape, settings, seed=0, given=given)
    wanted = generator.encoding.tokenizer.encode(frames)
    torch.testing.assert_close(video.latents[:, :2], wanted, atol=1e-5, rtol=1e-5)


def test_a_picture_covers_the_video(picture):
    frames = read_given(asked(image=picture), make([0, 1]), SHAPE)
    assert frames is not None and frames.shape == (1, 32, 32, 3)
    # The middle half of the width: green alone, but for the seam of scaling.
    assert (frames[0, :, 2:-2, 1] > 200).all() and (frames[0, :, 2:-2, 0] < 50).all()
    assert cover((40, 20), (32, 32)) == ((64, 32), (16, 0, 32, 32))
    assert cover((333, 500), (32, 32)) == ((32, 49), (0, 8, 32, 32))


def test_a_video_is_read_at_the_rate_that_is_made(film):
    frames = read_given(asked(video=film), make([0, 1, 2]), SHAPE)
    assert frames is not None and frames.shape == (5, 32, 32, 3)
    # 12 frames per second of 24: every second one.
    levels = frames.float().mean((1, 2, 3))
    assert torch.allclose(levels, torch.tensor([20.0, 36, 52, 68, 84]), atol=4)
    least = read_given(asked(video=film, prefix_frames=1), make([0, 1, 2]), SHAPE)
    assert least is not None and torch.equal(least, frames[:1])


def test_nothing_is_given_where_nothing_is_asked():
    assert read_given(asked(), make([0, 1]), SHAPE) is None


@pytest.mark.parametrize(
    ("lens", "values", "message"),
    [
        ([0], {"image": "PICTURE"}, "image=.*a.png: this model was trained on text alone"),
        ([1, 2], {}, r"only goes on from given frames \(1 or 5 frames\): give image=FILE or"),
        ([0, 2], {"image": "PICTURE"}, "a.png is 1 frame; this model goes on from 5 frames"),
        ([0, 1], {"video": "FILM", "prefix_frames": 5}, "prefix_frames=5; .* goes on from 1 frame"),
        ([0, 5], {"video": "FILM"}, "about 12 frames at 12 per second; this model goes on from 17"),
        ([0, 1], {"image": "nowhere.png"}, "image=nowhere.png cannot be read"),
        ([0, 1], {"image": "TEXT"}, "image=.*a.txt cannot be read"),
    ],
)
def test_what_the_model_did_not_learn_is_refused(lens, values, message, picture, film, tmp_path):
    (tmp_path / "a.txt").write_text("no picture")
    files = {"PICTURE": picture, "FILM": film, "TEXT": str(tmp_path / "a.txt")}
    values = {name: files.get(v, v) for name, v in values.items()}
    with pytest.raises(ConfigError, match=message):
        read_given(asked(**values), make(lens), SHAPE)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image": "a.png", "video": "a.mp4"}, "both say how the video begins"),
        ({"image": "a.png", "prefix_frames": 5}, "prefix_frames=5 are of a video"),
        ({"prefix_sigma": 0.1}, "prefix_sigma=0.1 is noise on what is given"),
        ({"image": "a.png", "prefix_sigma": -1.0}, "prefix_sigma must lie in 0 to 1000"),
    ],
)
def test_requests_that_contradict_themselves_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        asked(**values)
