"""The judge of the moving shapes against what is rendered, and what small models learn of them."""

import pytest
import torch

from examples.moving_shapes.shapes import FRAMES, KINDS, SIDE, Kind, judge, render
from examples.moving_shapes.train import Settings, Toy, score

ALL = list(range(len(KINDS)))
CORNERS = [[0.0, 0.0], [0.999, 0.0], [0.0, 0.999], [0.999, 0.999], [0.4, 0.6]]


@pytest.mark.parametrize("noise", [0.0, 0.15, 0.3])
def test_the_judge_sees_what_is_rendered_under_noise(noise):
    generator = torch.Generator().manual_seed(0)
    for corner in CORNERS:
        videos = render(ALL, torch.tensor([corner] * len(ALL)))
        assert videos.shape == (len(ALL), 3, FRAMES, SIDE, SIDE)
        noisy = videos + noise * torch.randn(videos.shape, generator=generator)
        assert judge(noisy) == KINDS


def test_places_differ_and_shapes_are_whole():
    draw = torch.rand(200, 2, generator=torch.Generator().manual_seed(0))
    kind = KINDS.index(Kind("yellow", "square", "up"))
    videos = render([kind] * 200, draw)
    assert len({v.numpy().tobytes() for v in videos}) == 10
    assert ((videos > -1).any(1).sum((2, 3)) == 64).all()


def test_the_judge_can_say_no():
    video = render([KINDS.index(Kind("red", "disc", "left"))], torch.tensor([[0.3, 0.6]]))
    (still,) = judge(video[:, :, :1].expand(-1, -1, FRAMES, -1, -1))
    assert still == Kind("red", "disc", "none")
    assert judge(torch.full_like(video, -1.0)) == [Kind("none", "none", "none")]
    # Played backwards, turned by 90 degrees, with channels exchanged.
    assert judge(video.flip(2)) == [Kind("red", "disc", "right")]
    assert judge(video.transpose(3, 4)) == [Kind("red", "disc", "up")]
    assert judge(video[:, [1, 0, 2]])[0].colour == "green"
    # Full of holes, grey, turning back, two at once.
    holes = video.clone()
    holes[..., ::2, ::2] = holes[..., 1::2, 1::2] = -1
    assert judge(holes)[0].shape == "none"
    grey = video.amax(1, keepdim=True).expand(-1, 3, -1, -1, -1)
    assert judge(grey)[0].colour == "none"
    assert judge(video[:, :, [0, 1, 2, 1]])[0].move == "none"
    assert judge(video.maximum(video.flip(2)))[0].move == "none"


def test_the_judge_tells_every_kind_from_every_other():
    draw = torch.rand(len(KINDS), 2, generator=torch.Generator().manual_seed(1))
    found = judge(render(ALL, draw))
    for i, kind in enumerate(KINDS):
        assert [j for j in ALL if found[j] == kind] == [i]


def test_a_small_model_learns_two_kinds():
    """The run of 48 kinds, and its record, is `vfm bench toys`."""
    kinds = [
        KINDS.index(Kind("red", "square", "left")),
        KINDS.index(Kind("blue", "square", "right")),
    ]
    settings = Settings(
        told="captions",
        kinds=kinds,
        steps=400,
        batch=16,
        hidden_size=96,
        num_layers=2,
        ema_decay=0.98,
        sampler_steps=10,
    )
    toy = Toy(settings)
    losses: list[float] = []
    toy.train(lambda step, loss: losses.append(loss))
    assert len(losses) == 400
    right = score(toy, 40)
    assert right["all"] >= 0.8, right


@pytest.mark.parametrize("told", ["captions", "classes"])
def test_what_it_is_told_reaches_what_it_draws(told):
    toy = Toy(Settings(told=told, steps=20, hidden_size=32, num_layers=1, sampler_steps=3))
    toy.train()
    made, other = toy.sample([0, 3]), toy.sample([3, 3])
    assert made.isfinite().all() and made.shape == (2, 3, FRAMES, SIDE, SIDE)
    # The same noise, another kind.
    assert not torch.equal(made[0], other[0]) and torch.equal(made[1], other[1])
