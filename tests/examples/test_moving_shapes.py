"""The judge of the moving shapes against what is rendered, and the two ways to tell a network."""

import pytest
import torch

import examples.moving_shapes.train as toy


@pytest.mark.parametrize("kind", toy.KINDS)
def test_the_judge_sees_what_is_rendered_under_noise(kind):
    generator = torch.Generator().manual_seed(0)
    for corner in ((0.0, 0.0), (0.999, 0.0), (0.0, 0.999), (0.5, 0.5)):
        video = toy.render(kind, corner)
        assert video.shape == (3, toy.FRAMES, toy.SIDE, toy.SIDE)
        noisy = video + 0.1 * torch.randn(video.shape, generator=generator)
        assert toy.judge(noisy) == kind


def test_the_judge_can_say_no():
    video = toy.render(("red", "disc", "left"), (0.3, 0.6))
    assert toy.judge(video.flip(1)) == ("red", "disc", "right")
    assert toy.judge(video[:, :1].expand(-1, toy.FRAMES, -1, -1)) == ("red", "disc", "still")
    assert toy.judge(torch.full_like(video, -1.0)) == ("nothing", "nothing", "nothing")
    assert toy.judge(video[[1, 0, 2]])[0] == "green"


@pytest.mark.parametrize("told", ["captions", "classes"])
def test_it_learns(told):
    settings = toy.Settings(
        told=told, seconds=60, steps=40, batch=16, hidden_size=32, num_layers=1, kinds=2
    )
    losses = []
    run = toy.Toy(settings)
    assert run.train(lambda step, loss: losses.append(loss)) == 40
    assert sum(losses[-5:]) < 0.75 * sum(losses[:5])
    made = run.sample([0, 3])
    assert len(made) == 2 and all(v.isfinite().all() for v in made)
    assert made[0].shape == (3, toy.FRAMES, toy.SIDE, toy.SIDE)
    # What it is told reaches what it draws: the same noise, another kind.
    other = run.sample([3, 3])
    assert not torch.equal(made[0], other[0]) and torch.equal(made[1], other[1])
