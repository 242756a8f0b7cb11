"""Wiring tier: objectives against their papers, each other, and exact denoisers."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from common import rng
from common.errors import ConfigError
from models.objectives.config import ObjectiveConfig, Target
from models.objectives.log_variance import LogVariance
from models.objectives.loss import Denoiser, Objective, token_noise
from models.objectives.noise import shift_of
from models.objectives.targets import precondition
from models.objectives.weights import weight
from models.pack import PackLayout

SIGMA = torch.tensor([0.002, 0.1, 0.5, 1.0, 7.0, 80.0], dtype=torch.float64)
TARGETS: list[Target] = ["edm", "flow", "v", "x0", "epsilon"]
D = 0.5


def test_edm_is_the_best_preconditioning():
    # Karras et al. 2022, appendix B.6: the requirements from which the scalings follow.
    s = precondition("edm", D)(SIGMA)
    torch.testing.assert_close(s.c_in**2 * (0.25 + SIGMA**2), torch.ones_like(SIGMA))
    target_variance = ((1 - s.c_skip) ** 2 * 0.25 + s.c_skip**2 * SIGMA**2) / s.c_out**2
    torch.testing.assert_close(target_variance, torch.ones_like(SIGMA))
    # c_skip is the one that makes c_out least.
    for shift in (-1e-3, 1e-3):
        c = s.c_skip + shift
        assert ((1 - c) ** 2 * 0.25 + c**2 * SIGMA**2 > s.c_out**2).all()
    torch.testing.assert_close(s.c_noise, SIGMA.log() / 4)


@pytest.mark.parametrize("target", TARGETS)
def test_an_exact_output_gives_the_clean_data(target):
    # What each target is by definition, from clean data and noise, makes D(x) the clean data.
    torch.manual_seed(0)
    clean, noise = D * torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    t, alpha = SIGMA / (1 + SIGMA), 1 / (1 + (SIGMA / D) ** 2).sqrt()
    exact = {
        "flow": noise - clean,
        "v": alpha * noise - alpha * SIGMA / D * clean / D,
        "edm": alpha * SIGMA / D * clean / D - alpha * noise,
        "x0": clean / D,
        "epsilon": noise,
    }[target]
    s = precondition(target, D)(SIGMA)
    x = clean + SIGMA * noise
    torch.testing.assert_close(s.c_skip * x + s.c_out * exact, clean)
    if target == "flow":
        torch.testing.assert_close(s.c_in * x, (1 - t) * clean + t * noise)
        torch.testing.assert_close(s.c_noise, t)
    else:
        # Unit variance, for data of standard deviation D.
        torch.testing.assert_close(s.c_in**2 * (D**2 + SIGMA**2), torch.ones_like(SIGMA))


class Linear:
    """A network of one target whose denoiser is `gain(sigma) * x`, whatever the target."""

    def __init__(self, target: Target, gain: Tensor, sigma: Tensor) -> None:
        self.scalings = precondition(target, D)(sigma)
        self.gain = gain

    def __call__(self, z: Tensor, c_noise: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        s = self.scalings
        factor = (self.gain - s.c_skip) / (s.c_out * s.c_in)
        return layout.spread(factor)[:, None] * z


def sample(n: int, tokens: int, dim: int = 8) -> tuple[PackLayout, Tensor, Tensor, Tensor]:
    """Layout, clean data of standard deviation D, noise and levels."""
    torch.manual_seed(1)
    layout = PackLayout.build([(1, 1, tokens)] * n, [0] * n, torch.zeros(n))
    clean, noise = (torch.randn(layout.num_tokens, dim, dtype=torch.float64) for _ in range(2))
    sigma = torch.tensor([0.05, 0.3, 0.5, 2.0, 30.0], dtype=torch.float64)[:n]
    return layout, D * clean, noise, sigma


NO_TEXT = torch.zeros(0, 4)


@pytest.mark.parametrize("kind", ["clean", "min_snr", "soft_min_snr"])
def test_the_same_denoiser_has_the_same_loss_under_every_target(kind):
    layout, clean, noise, sigma = sample(5, 6)
    gain = torch.tensor([0.9, 0.7, 0.4, 0.1, 0.02], dtype=torch.float64)
    losses = []
    for target in TARGETS:
        objective = Objective(ObjectiveConfig(target=target, weight=kind))
        network = Linear(target, gain, sigma)
        errors = objective.errors(network, clean, sigma, noise, NO_TEXT, layout)
        losses.append(objective.losses(network, errors, sigma, layout))
    for other in losses[1:]:
        torch.testing.assert_close(other, losses[0])


def test_output_weights_are_the_published_ones():
    snr = D**2 / SIGMA**2
    t = SIGMA / (1 + SIGMA)
    published: dict[Target, Tensor] = {
        "edm": (SIGMA**2 + D**2) / (SIGMA * D) ** 2,  # Karras et al. 2022, table 1
        "v": (snr + 1) / D**2,  # Salimans and Ho 2022, section 4: snr + 1, on clean / D
        "epsilon": snr / D**2,
        "x0": torch.ones_like(SIGMA) / D**2,
        "flow": 1 / t**2,
    }
    for target, wanted in published.items():
        config = ObjectiveConfig(target=target)
        found = weight(config, SIGMA, precondition(target, D)(SIGMA))
        torch.testing.assert_close(found, wanted)


def test_snr_weights():
    s = precondition("edm", D)(SIGMA)
    config = ObjectiveConfig(weight="min_snr", snr_gamma=5.0)
    hard = weight(config, SIGMA, s) * D**2
    soft = weight(replace(config, weight="soft_min_snr"), SIGMA, s) * D**2
    snr = D**2 / SIGMA**2
    torch.testing.assert_close(hard, torch.minimum(snr, torch.tensor(5.0).double()))
    assert (soft < hard).all() and (soft > hard / 2 - 1e-12).all()
    # With gamma 1 it is 1 / (sigma^2 + d^2): EDM's weight times (sigma d)^2 / (sigma^2 + d^2)^2.
    one = weight(ObjectiveConfig(weight="soft_min_snr", snr_gamma=1.0), SIGMA, s)
    torch.testing.assert_close(one, 1 / (SIGMA**2 + D**2))


@pytest.mark.parametrize("target", TARGETS)
def test_least_loss_on_gaussian_data_is_the_known_score(target):
    # For data N(0, D^2) the denoiser is D^2 / (D^2 + sigma^2) x, the score (D(x) - x) / sigma^2.
    # Losses are quadratic in the gain of a linear network: three values give its minimum.
    layout, clean, noise, sigma = sample(5, 4000)
    objective = Objective(ObjectiveConfig(target=target))

    def losses(gain: float) -> Tensor:
        network = Linear(target, torch.full((5,), gain, dtype=torch.float64), sigma)
        errors = objective.errors(network, clean, sigma, noise, NO_TEXT, layout)
        per_token = objective.losses(network, errors, sigma, layout)
        return torch.stack([part.mean() for part in per_token.split(layout.lens)])

    low, middle, high = losses(0.0), losses(0.5), losses(1.0)
    best = 0.5 + 0.25 * (low - high) / (low + high - 2 * middle)
    exact = D**2 / (D**2 + sigma**2)
    score, exact_score = (best - 1) / sigma**2, (exact - 1) / sigma**2
    # 32,000 numbers: a gain is known to about sqrt(2 / 32000) of its scatter.
    torch.testing.assert_close(best, exact, atol=0.01, rtol=0)
    torch.testing.assert_close(score, exact_score, atol=0.02 * 4, rtol=0.03)


def test_error_of_a_zero_network_is_the_known_one():
    # D = c_skip x for F = 0; for data of variance v its error is (1-c)^2 v + c^2 sigma^2.
    n, dim = 2, 16
    layout = PackLayout.build([(2, 20, 25)] * n, [0] * n, torch.zeros(n))
    keys = rng.keys(3, "noise", step=0, sample_ids=["a", "b"])
    clean = 0.5 * token_noise(rng.keys(3, "data", step=0, sample_ids=["a", "b"]), layout, dim)
    noise = token_noise(keys, layout, dim)
    sigma = torch.tensor([0.3, 2.0])
    objective = Objective(ObjectiveConfig())
    zero = lambda x, c, text, layout: torch.zeros_like(x)  # noqa: E731
    errors = objective.errors(zero, clean, sigma, noise, torch.zeros(0, 4), layout)
    c_skip = precondition("edm", 0.5)(sigma).c_skip
    expected = (1 - c_skip) ** 2 * 0.25 + c_skip**2 * sigma**2
    means = torch.stack([part.mean() for part in errors.split(layout.lens)])
    torch.testing.assert_close(means, expected, rtol=0.03, atol=0)


def test_denoiser_scales_what_the_network_sees():
    layout = PackLayout.build([(1, 1, 2), (1, 1, 1)], [0, 0], torch.zeros(2))
    seen = []

    def network(x, c_noise, text, layout):
        seen.append((x, c_noise))
        return torch.ones_like(x)

    x = torch.ones(3, 4, dtype=torch.float64)
    sigma = torch.tensor([1.0, 3.0], dtype=torch.float64)
    scalings = precondition("edm", 0.5)
    out = Denoiser(network, scalings)(x, sigma, torch.zeros(0, 4), layout)
    s = scalings(sigma)
    rows = torch.tensor([0, 0, 1])
    torch.testing.assert_close(seen[0][0][:, 0], s.c_in[rows])
    torch.testing.assert_close(out[:, 0], (s.c_skip + s.c_out)[rows])


class WithLogVariance(nn.Module):
    """A denoiser of gain 0 in EDM's terms, and the learned log-variance."""

    def __init__(self, sigma: Tensor) -> None:
        super().__init__()
        self.log_variance = LogVariance()
        self.linear = Linear("edm", torch.zeros_like(sigma), sigma)

    def forward(self, *args) -> Tensor:
        return self.linear(*args)


def test_log_variance_learns_how_hard_each_level_is():
    layout, clean, noise, sigma = sample(5, 300)
    network = WithLogVariance(sigma)
    objective = Objective(ObjectiveConfig(log_variance=True))
    errors = objective.errors(network, clean, sigma, noise, NO_TEXT, layout).detach()
    plain = layout.spread(objective.weight(sigma)) * errors
    # At first, u = 0: the loss is the plain one.
    torch.testing.assert_close(objective.losses(network, errors, sigma, layout), plain)
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective.losses(network, errors, sigma, layout).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    means = torch.stack([part.mean() for part in plain.split(layout.lens)])
    u = network.log_variance(objective.precondition(sigma).c_noise).detach().double()
    torch.testing.assert_close(u, means.log(), atol=1e-2, rtol=0)


def drawn(**settings) -> Tensor:
    keys = rng.keys(0, "sigma", step=0, sample_ids=[str(i) for i in range(20_000)])
    grid = settings.pop("grid", (1, 16, 16))
    return Objective(ObjectiveConfig(**settings)).draw_sigma(keys, [grid] * 20_000).double()


def test_lognormal_levels_are_logit_normal_times():
    sigma = drawn(p_mean=-0.4, p_std=1.2)
    logs = sigma.log()
    assert abs(logs.mean() + 0.4) < 5 * 1.2 / math.sqrt(20_000)
    assert abs(logs.std() - 1.2) < 0.05
    torch.testing.assert_close((sigma / (1 + sigma)).logit(), logs)


def test_uniform_and_mode_times():
    def times(**settings) -> Tensor:
        sigma = drawn(**settings)
        return sigma / (1 + sigma)

    uniform = times(noise="uniform")
    assert abs(uniform.mean() - 0.5) < 0.02 and abs(uniform.quantile(0.1) - 0.1) < 0.02
    torch.testing.assert_close(times(noise="mode", mode_scale=0.0), 1 - uniform)
    # Density at the middle is 1 / |f'(1/2)| with f' = -1 + s (pi/2 sin(pi u) - 1).
    middle = times(noise="mode", mode_scale=1.29)
    share = ((middle > 0.495) & (middle < 0.505)).double().mean()
    assert share == pytest.approx(0.01 / (1 - 1.29 * (math.pi / 2 - 1)), rel=0.15)


def test_shifts_follow_size():
    # Esser et al. 2024, eq. 23: t' = a t / (1 + (a - 1) t).
    plain, shifted = drawn(noise="uniform"), drawn(noise="uniform", shift=3.0)
    t = plain / (1 + plain)
    torch.testing.assert_close(shifted / (1 + shifted), 3 * t / (1 + 2 * t), atol=1e-6, rtol=1e-5)
    config = ObjectiveConfig(
        shift=1.5, resolution_power=0.5, base_frame_patches=256, length_power=0.5
    )
    assert shift_of(config, (1, 16, 16)) == pytest.approx(1.5)
    assert shift_of(config, (1, 64, 64)) == pytest.approx(1.5 * 4)
    assert shift_of(config, (9, 32, 8)) == pytest.approx(1.5 * 3)
    # Per sample of one draw.
    keys = rng.keys(0, "sigma", step=0, sample_ids=["a", "a"])
    small, large = Objective(config).draw_sigma(keys, [(1, 16, 16), (4, 32, 32)])
    assert large / small == pytest.approx(4)


def test_noise_belongs_to_the_sample_not_to_the_pack():
    keys = rng.keys(0, "noise", step=1, sample_ids=["a", "b"])
    both = PackLayout.build([(2, 2, 2), (1, 3, 2)], [0, 0], torch.zeros(2))
    swapped = PackLayout.build([(1, 3, 2), (2, 2, 2)], [0, 0], torch.zeros(2))
    first = token_noise(keys, both, 8).split(both.lens)
    second = token_noise(keys.flip(0), swapped, 8).split(swapped.lens)
    assert torch.equal(first[0], second[1]) and torch.equal(first[1], second[0])


def test_tokens_of_any_width_get_noise():
    layout = PackLayout.build([(1, 2, 2), (1, 1, 1)], [0, 0], torch.zeros(2))
    noise = token_noise(rng.keys(0, "noise", step=1, sample_ids=["a", "b"]), layout, 6)
    assert noise.shape == (5, 6) and len(noise.unique()) == 30


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sigma_data": 0}, "sigma_data must be positive, got 0"),
        ({"p_std": -1}, "p_std must be positive, got -1"),
        ({"p_mean": math.nan}, "p_mean must be finite, got nan"),
        ({"shift": 0.0}, "shift must be positive, got 0.0"),
        ({"mode_scale": 2.0}, "mode_scale must lie in -1 to 1.75, got 2.0"),
        ({"base_frame_patches": 0}, "base_frame_patches must be at least 1, got 0"),
    ],
)
def test_bad_constants_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ObjectiveConfig(**settings)
