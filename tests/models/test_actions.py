"""Wiring tier: samples of a pack that are told what is done in their frames."""

from typing import Any

import pytest
import torch

from common.errors import ConfigError
from models.actions import pack_actions, per_patch
from models.dit import DiTConfig
from models.family import build_network
from models.initialize import initialize
from models.moviegen import MovieGenConfig
from models.pack import Actions, PackLayout
from models.stdit import STDiTConfig
from tests.models.packs import (
    TEXT_DIM,
    TOKEN_DIM,
    assert_packs_as_alone,
    make_pack,
    random_weights,
)

SHAPE: dict[str, Any] = {
    "hidden_size": 48,
    "num_layers": 2,
    "num_heads": 4,
    "action_dim": 3,
    "prefix": True,
}
NETWORKS = {
    "dit": DiTConfig(**SHAPE),
    "zero": DiTConfig(**SHAPE, null_action="zero"),
    "moviegen": MovieGenConfig(**SHAPE, num_kv_heads=2, ffn_size=40, max_grid=[4, 4, 4]),
    "stdit": STDiTConfig(**SHAPE),
}
DRAWN = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double()
"""Of samples of 3, 1 and 2 frames."""


def make_network(name: str) -> Any:
    network = build_network(NETWORKS[name], token_dim=TOKEN_DIM, text_dim=TEXT_DIM).double()
    random_weights(network)
    return network


@pytest.mark.parametrize("given", [(True, True, True), (True, False, True), (False, True, False)])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_pack_is_its_samples_alone(name, given):
    torch.manual_seed(3)
    pack = make_pack(prefix_lens=(2, 0, 1), actions=Actions(DRAWN, given))
    assert_packs_as_alone(make_network(name), *pack)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_who_has_none_is_told_the_null_action(name):
    network = make_network(name)
    x, c_noise, text, layout = make_pack(actions=Actions(DRAWN, (True, False, True)))
    before = network(x, c_noise, text, layout).split(layout.lens)
    changed = DRAWN.clone()
    changed[1], changed[3] = 7.0, 7.0  # of the first sample's second frame, and of the second's
    other = PackLayout.build(
        layout.grids,
        layout.lens_text,
        layout.fps,
        actions=Actions(changed, (True, False, True)),
    )
    after = network(x, c_noise, text, other).split(layout.lens)
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [False, True, True]
    # The pack without any says the same of the one without.
    none = PackLayout.build(layout.grids, layout.lens_text, layout.fps)
    nothing = network(x, c_noise, text, none).split(layout.lens)
    torch.testing.assert_close(nothing[1], before[1], atol=1e-12, rtol=0)
    assert ("actions.null" in dict(network.named_parameters())) == (name != "zero")


def test_an_action_is_added_to_the_tokens_of_its_frame():
    network = make_network("dit")
    x, _, _, layout = make_pack(actions=Actions(DRAWN, (True, False, True)))
    h = torch.zeros(len(x), 48, dtype=torch.float64)
    added = network.actions(h, layout)
    enter, leave, null = network.actions.enter, network.actions.leave, network.actions.null
    rows = leave(torch.nn.functional.silu(enter(DRAWN)))
    wanted = [rows[0]] * 8 + [rows[1]] * 8 + [rows[2]] * 8 + [null[0]] * 8
    wanted += [rows[4]] * 4 + [rows[5]] * 4
    torch.testing.assert_close(added, torch.stack(wanted))


def test_what_is_added_starts_at_zero():
    network: Any = build_network(NETWORKS["dit"], token_dim=TOKEN_DIM, text_dim=TEXT_DIM)
    initialize(network, 0)
    _, _, _, layout = make_pack(actions=Actions(DRAWN, (True, False, True)))
    x = torch.randn(layout.num_tokens, 48)
    assert torch.equal(network.actions(x, layout), x)


def test_actions_of_frames_to_those_of_patches():
    frames = torch.arange(9.0)[:, None]
    # The first latent frame is one frame, the others are four; a patch may hold several.
    assert per_patch(frames, 3, 4)[:, 0].tolist() == [0.0, 2.5, 6.5]
    assert per_patch(frames[:5], 1, 8)[:, 0].tolist() == [(0 * 4 + 1 + 2 + 3 + 4) / 8]
    assert per_patch(frames[:1], 1, 4)[:, 0].tolist() == [0.0]
    made = pack_actions([frames[:5], None], [2, 3], 4)
    assert made is not None and made.given == (True, False)
    assert made.values[:, 0].tolist() == [0.0, 2.5, 0.0, 0.0, 0.0]
    assert pack_actions([None, None], [2, 3], 4) is None


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="5 actions of 3 samples, for 6 patches along t of 3"):
        make_pack(actions=Actions(DRAWN[:5], (True, False, True)))
    with pytest.raises(ConfigError, match="model.action_dim must be at least 0"):
        DiTConfig(action_dim=-1)
