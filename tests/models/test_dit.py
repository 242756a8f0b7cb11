"""Wiring tier: the DiT against what its parts promise, in double precision."""

import pytest
import torch
import torch.nn.functional as F

from common.errors import ConfigError
from models.attention import local_attention
from models.dit import DiT, DiTBlock, DiTConfig
from models.initialize import initialize
from models.layers import PlainLinears
from models.modulation import AdaLN
from models.pack import PackLayout
from models.positions import RotaryPositions3D, rotate
from tests.models.packs import GRIDS, LENS_TEXT, assert_packs_as_alone, make_pack


def make_model(**overrides) -> DiT:
    config = DiTConfig(**{"hidden_size": 48, "num_layers": 2, "num_heads": 4, **overrides})
    model = DiT(config, token_dim=12, text_dim=16).double()
    initialize(model, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            # Away from the zero start, where nothing could be told apart.
            if not parameter.any():
                parameter.add_(torch.randn(parameter.shape, dtype=torch.float64) * 0.3)
    return model


VARIANTS = {
    "dense": {},
    "low rank": {"adaln_rank": 4},
    "text as it is": {"project_text": False},
    "learned positions": {"absolute_positions": "learned", "max_grid": [3, 4, 4]},
    "longer than trained": {"rope_extrapolation": [2.0, 1.5, 3.0], "absolute_positions": "none"},
}


@pytest.mark.parametrize("name", list(VARIANTS))
def test_a_pack_is_its_samples_alone(name):
    torch.manual_seed(3)
    assert_packs_as_alone(make_model(**VARIANTS[name]), *make_pack())


def test_classes_instead_of_text():
    torch.manual_seed(3)
    model = make_model(num_classes=7)
    x, c_noise, _, layout = make_pack()
    assert not any("cross_attention" in name or "text" in name for name in model.state_dict())
    labels = torch.tensor([3, 7, 0])  # 7 is no class
    before = model(x, c_noise, labels, layout).split(layout.lens)
    with torch.no_grad():
        model.classes.table[3] += 1.0
    after = model(x, c_noise, labels, layout).split(layout.lens)
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [False, True, True]
    for i, piece in enumerate(x.split(layout.lens)):
        alone = PackLayout.build([GRIDS[i]], [0], layout.fps[i : i + 1])
        out = model(piece, c_noise[i : i + 1], labels[i : i + 1], alone)
        torch.testing.assert_close(out, after[i], atol=1e-12, rtol=0)


def test_extrapolation_slows_the_slowest_frequency_by_its_ratio():
    # NTK-aware: theta * ratio^(d / (d - 2)) leaves the fastest frequency, 1, as it is.
    plain = RotaryPositions3D(head_dim=64).frequencies.split([12, 10, 10])
    longer = RotaryPositions3D(head_dim=64, extrapolation=(2.0, 1.0, 3.0)).frequencies
    for ratio, before, after in zip(
        (2.0, 1.0, 3.0), plain, longer.split([12, 10, 10]), strict=True
    ):
        torch.testing.assert_close(before[0], after[0], atol=0, rtol=0)
        torch.testing.assert_close(before[-1] / after[-1], torch.tensor(ratio).double())
        assert (before / after).diff().min() >= 0


def test_learned_positions_say_how_far_they_reach():
    model = make_model(absolute_positions="learned", max_grid=[3, 4, 3])
    x, c_noise, text, layout = make_pack()
    with pytest.raises(
        ValueError, match=r"\(3, 2, 4\) patches.*beyond \(3, 4, 3\); raise model.max_grid"
    ):
        model(x, c_noise, text, layout)


def test_order_in_the_pack_does_not_matter():
    torch.manual_seed(3)
    model = make_model()
    x, c_noise, text, layout = make_pack()
    order = [2, 0, 1]
    parts, texts = x.split(layout.lens), text.split(LENS_TEXT)
    other = PackLayout.build(
        [GRIDS[i] for i in order], [LENS_TEXT[i] for i in order], layout.fps[order]
    )
    out = model(
        torch.cat([parts[i] for i in order]),
        c_noise[order],
        torch.cat([texts[i] for i in order]),
        other,
    )
    expected = model(x, c_noise, text, layout).split(layout.lens)
    torch.testing.assert_close(out, torch.cat([expected[i] for i in order]), atol=1e-12, rtol=0)


def written_out(modulation: AdaLN, active: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """All shifts, scales and gates side by side, `[n, 9h]`."""
    w, rank = dict(modulation.named_parameters()), modulation.rank
    if not rank:
        return active @ w["dense.weight"].T + w["dense.bias"]
    downs = w["down.weight"].split(rank)
    parts = [active @ down.T @ w[f"up.{i}.weight"].T + shared for i, down in enumerate(downs)]
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("rank", [0, 5])
def test_a_block_is_its_formula_written_out(rank):
    # DiT, section 3.2: x + gate * f(norm(x) * (1 + scale) + shift), thrice, per sample.
    torch.manual_seed(3)
    model = make_model(num_layers=1, adaln_rank=rank)
    block = model.blocks["0"]
    assert isinstance(block, DiTBlock) and block.cross_attention is not None
    cross_attention = block.cross_attention
    layout = make_pack()[3]
    x = torch.randn(layout.num_tokens, 48, dtype=torch.float64)
    condition = torch.randn(3, 48, dtype=torch.float64)
    text = torch.randn(sum(layout.cross_attention.lens_k), 48, dtype=torch.float64)
    cos, sin = model.positions(layout, torch.float64)
    shared = torch.randn(3, 144, dtype=torch.float64)
    out = block(x, condition, shared, text, layout, (cos, sin))

    parts = written_out(block.modulation, F.silu(condition), shared)[layout.segment].chunk(9, dim=1)
    steps = [
        lambda y: block.self_attention(y, layout.self_attention, (cos, sin)),
        lambda y: cross_attention(y, text, layout.cross_attention),
        block.mlp,
    ]
    for i, step in enumerate(steps):
        shift, scale, gate = parts[3 * i : 3 * i + 3]
        centred = x - x.mean(1, keepdim=True)
        normed = centred / (x.var(1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        x = x + gate * step(normed * (1 + scale) + shift)
    torch.testing.assert_close(out, x, atol=1e-12, rtol=0)


@pytest.mark.parametrize("part", ["noise", "fps", "text", "null"])
def test_conditioning_reaches_its_own_sample_only(part):
    torch.manual_seed(3)
    model = make_model()
    x, c_noise, text, layout = make_pack()
    before = model(x, c_noise, text, layout).split(layout.lens)
    if part == "noise":
        c_noise, touched = c_noise + torch.tensor([0, 0, 0.3]), {2}
    elif part == "fps":
        layout, touched = PackLayout.build(GRIDS, LENS_TEXT, torch.tensor([30.0, 0.0, 12.0])), {0}
    elif part == "text":
        text, touched = text + torch.tensor([1.0] * 3 + [0.0] * 5)[:, None], {0}
    else:
        model.text.null.data += 1.0
        touched = {1}
    after = model(x, c_noise, text, layout).split(layout.lens)
    moved = {i for i in range(3) if (after[i] - before[i]).abs().max() > 1e-6}
    same = {i for i in range(3) if torch.equal(after[i], before[i])}
    assert moved == touched
    assert same == {0, 1, 2} - touched


def test_starts_by_predicting_zero():
    model = DiT(DiTConfig(hidden_size=48, num_layers=2, num_heads=4), token_dim=12, text_dim=16)
    initialize(model, seed=0)
    x, c_noise, text, layout = make_pack()
    out = model(x.float(), c_noise.float(), text.float(), layout)
    assert torch.equal(out, torch.zeros_like(out))


def test_initial_weights_depend_on_seed_and_name_only():
    config = DiTConfig(hidden_size=48, num_layers=3, num_heads=4)
    one, two = (DiT(config, token_dim=12, text_dim=16) for _ in range(2))
    initialize(one, seed=5)
    torch.manual_seed(99)
    initialize(two, seed=5)
    weights = dict(one.named_parameters())
    assert all(torch.equal(weights[name], p) for name, p in two.named_parameters())
    deeper = DiT(DiTConfig(hidden_size=48, num_layers=2, num_heads=4), token_dim=12, text_dim=16)
    initialize(deeper, seed=5)
    assert all(torch.equal(weights[name], p) for name, p in deeper.named_parameters())
    matrix = weights["blocks.0.mlp.up.weight"]
    assert abs(matrix.std() - (2 / (48 + 192)) ** 0.5) < 0.01
    assert not torch.equal(matrix, weights["blocks.1.mlp.up.weight"])


def test_linears_and_attention_are_injected():
    made, called = [], []

    class Counting(PlainLinears):
        def column(self, in_features, out_features, *, bias):
            made.append("column")
            return super().column(in_features, out_features, bias=bias)

        def row(self, in_features, out_features, *, bias):
            made.append("row")
            return super().row(in_features, out_features, bias=bias)

    def attention(q, k, v, layout):
        called.append(q.shape)
        return local_attention(q, k, v, layout)

    config = DiTConfig(hidden_size=48, num_layers=2, num_heads=4)
    model = DiT(config, token_dim=12, text_dim=16, attention=attention, linears=Counting())
    x, c_noise, text, layout = make_pack()
    model(x.float(), c_noise.float(), text.float(), layout)
    # A block: q, k, v of two attentions and the MLP's first; their two outputs and its second.
    assert made.count("column") == 2 * 7 and made.count("row") == 2 * 3
    assert called == [(layout.num_tokens, 4, 12)] * 4


def test_rotary_scores_depend_on_differences_in_seconds():
    positions = RotaryPositions3D(head_dim=24, base_fps=24.0)
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 24, dtype=torch.float64), torch.randn(1, 1, 24, dtype=torch.float64)

    def score(grid, fps, a, b):
        layout = PackLayout.build([grid], [0], torch.tensor([fps]))
        cos, sin = positions(layout, torch.float64)
        place = {tuple(c): i for i, c in enumerate(layout.coordinates.tolist())}
        i, j = place[a], place[b]
        return (rotate(q, cos[i], sin[i]) * rotate(k, cos[j], sin[j])).sum()

    base = score((4, 3, 3), 24.0, (2, 1, 1), (1, 2, 0))
    assert torch.isclose(base, score((4, 3, 3), 24.0, (3, 0, 2), (2, 1, 1)), atol=1e-12)
    assert not torch.isclose(base, score((4, 3, 3), 24.0, (3, 1, 1), (1, 2, 0)), atol=1e-4)
    # Two frames at 48 per second last as long as one at 24.
    twice = score((5, 3, 3), 48.0, (4, 1, 1), (2, 2, 0))
    assert torch.isclose(base, twice, atol=1e-12)


def test_rotary_positions_stay_exact_in_half_precision():
    layout = PackLayout.build([(60, 1, 1)], [0], torch.tensor([24.0]))
    positions = RotaryPositions3D(head_dim=24)
    torch.manual_seed(0)
    x = torch.randn(60, 1, 24).bfloat16()
    turned = rotate(x, *positions(layout, torch.bfloat16))
    exact = rotate(x.double(), *positions(layout, torch.float64)).bfloat16()
    assert turned.dtype == torch.bfloat16
    # But for ties in the last bit of the result, that is what rounding once gives.
    assert (turned != exact).float().mean() < 0.01


def test_attention_gets_one_type_under_autocast():
    types = set()

    def attention(q, k, v, layout):
        types.update((q.dtype, k.dtype, v.dtype))
        return local_attention(q, k, v, layout)

    config = DiTConfig(hidden_size=48, num_layers=1, num_heads=4)
    model = DiT(config, token_dim=12, text_dim=16, attention=attention)
    x, c_noise, text, layout = make_pack()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x.float(), c_noise.float(), text.float(), layout)
    assert types == {torch.bfloat16}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"hidden_size": 50}, "hidden_size=50 is not divisible by model.num_heads=4"),
        ({"hidden_size": 20}, "even head size of at least 6"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
        ({"num_heads": -4}, "num_heads must be at least 1, got -4"),
        ({"hidden_size": 0}, "hidden_size must be at least 1, got 0"),
        ({"mlp_ratio": 0.0}, "mlp_ratio must be positive, got 0.0"),
        ({"mlp_ratio": 0.01}, "mlp_ratio=0.01 of model.hidden_size=48 leaves"),
        ({"mlp_ratio": float("inf")}, "mlp_ratio must be positive, got inf"),
        ({"rope_base_fps": 0.0}, "rope_base_fps must be positive, got 0.0"),
        ({"rope_base_fps": float("nan")}, "rope_base_fps must be positive, got nan"),
        ({"patch": [1, 2]}, "three positive sizes"),
        ({"max_grid": [0, 1, 1]}, "max_grid must be three positive sizes"),
        ({"adaln_rank": -1}, "adaln_rank must be at least 0, got -1"),
        ({"rope_extrapolation": [1.0, 2.0]}, "rope_extrapolation must be three positive numbers"),
    ],
)
def test_impossible_shapes_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        DiTConfig(**{"hidden_size": 48, "num_heads": 4, **overrides})


def test_text_of_another_length_is_refused():
    model = make_model()
    x, c_noise, text, layout = make_pack()
    with pytest.raises(ValueError, match="text holds 7 tokens, the layout says 8"):
        model(x, c_noise, text[:-1], layout)


@pytest.mark.parametrize("absolute", ["sincos", "learned", "none"])
def test_absolute_positions_tell_equal_tokens_apart(absolute):
    # Attention over equal values is blind to rotary positions: without absolute ones, every token
    # of a pack that is all alike would come out alike.
    torch.manual_seed(3)
    model = make_model(absolute_positions=absolute)
    layout = PackLayout.build([(3, 2, 4)], [2], torch.tensor([24.0]))
    x = torch.ones(24, 12, dtype=torch.float64)
    text, c_noise = torch.randn(2, 16, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    out = model(x, c_noise, text, layout).unflatten(0, (3, 2, 4))
    for axis in range(3):
        along = out.diff(dim=axis).abs().amax()
        assert along < 1e-12 if absolute == "none" else along > 1e-2
