"""Wiring tier: the geometry of packs, and patches there and back."""

import pytest
import torch

from models.pack import PackLayout
from models.patch import grid_of, patchify, unpatchify


def test_geometry():
    layout = PackLayout.build([(2, 1, 2), (1, 2, 1)], [0, 3], torch.tensor([24.0, 0.0]))
    assert layout.lens == (4, 2) and layout.num_tokens == 6
    assert layout.segment.tolist() == [0, 0, 0, 0, 1, 1]
    assert layout.position.tolist() == [0, 1, 2, 3, 0, 1]
    assert layout.coordinates.tolist() == [
        [0, 0, 0],
        [0, 0, 1],
        [1, 0, 0],
        [1, 0, 1],
        [0, 0, 0],
        [0, 1, 0],
    ]
    assert layout.cross_attention.lens_k == (1, 3)
    assert layout.spread(torch.tensor([5.0, 7.0])).tolist() == [5, 5, 5, 5, 7, 7]


def test_patches_there_and_back():
    shapes = [(4, 2, 4, 6), (4, 1, 2, 2)]
    latents = [torch.randn(s) for s in shapes]
    patch = (1, 2, 2)
    grids = [grid_of(s, patch) for s in shapes]
    assert grids == [(2, 2, 3), (1, 1, 1)]
    tokens = patchify(latents, patch)
    assert tokens.shape == (13, 16)
    # Order (t h w) of tokens, (c pt ph pw) of features.
    corner = latents[0][:, 1, 2:4, 0:2].flatten()
    assert torch.equal(tokens[1 * 6 + 1 * 3 + 0], corner)
    back = unpatchify(tokens, grids, patch)
    assert all(torch.equal(a, b) for a, b in zip(latents, back, strict=True))


def test_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="not a multiple of"):
        grid_of((4, 1, 3, 2), (1, 2, 2))
    with pytest.raises(ValueError, match="must describe the same samples"):
        PackLayout.build([(1, 1, 1)], [0, 0], torch.zeros(1))
