"""Wiring tier: the samplers against Gaussian data, whose denoiser is known exactly."""

import math

import pytest
import torch

from common.errors import ConfigError
from inference.config import GenerateConfig, SamplerConfig
from inference.guidance import guided
from inference.samplers import euler, flow_sigmas, heun, karras_sigmas
from models.objectives.loss import Denoiser
from models.objectives.targets import precondition
from models.pack import PackLayout

STD = 0.5


def exact(x, sigma):
    """E[clean | x] for clean ~ N(0, STD^2)."""
    return x * STD**2 / (STD**2 + sigma**2)


def truth(x, sigma_from, sigma_to):
    """The ODE's solution: x scales as the standard deviation of noisy data."""
    return x * math.sqrt((STD**2 + sigma_to**2) / (STD**2 + sigma_from**2))


def error(sampler, num_steps, path):
    sigmas = karras_sigmas(num_steps, 0.02, 10.0, 7.0)[:-1]
    if path == "flow":
        # Equal steps of t, between the same levels; they are doubled by doubling num_steps.
        first, last = 10 / 11, 0.02 / 1.02
        times = [first + (last - first) * i / num_steps for i in range(num_steps + 1)]
        sigmas = [t / (1 - t) for t in times]
    x = torch.tensor([3.0, -7.0], dtype=torch.float64)
    wanted = truth(x, sigmas[0], sigmas[-1])
    return float((sampler(exact, x, sigmas, None, path) - wanted).abs().max())


@pytest.mark.parametrize("path", ["edm", "flow"])
def test_orders_of_convergence(path):
    # Halving the step divides the error by 2 to the order: Euler 1, Heun 2. A Heun whose
    # correction looks at the old point would behave as Euler.
    def order(sampler):
        return math.log2(error(sampler, 128, path) / error(sampler, 256, path))

    print(f"{path}: euler {order(euler):.3f}, heun {order(heun):.3f}")
    assert 0.9 < order(euler) < 1.1
    assert 1.9 < order(heun) < 2.1
    assert error(heun, 32, path) < error(euler, 128, path)


def test_euler_steps_alike_in_both_coordinates_and_heun_does_not():
    sigmas = karras_sigmas(9, 0.02, 10.0, 7.0)
    x = torch.tensor([3.0, -7.0], dtype=torch.float64)
    torch.testing.assert_close(euler(exact, x, sigmas), euler(exact, x, sigmas, None, "flow"))
    assert not torch.allclose(heun(exact, x, sigmas), heun(exact, x, sigmas, None, "flow"))


def test_a_flow_step_is_its_formula():
    # With the velocity v of clean = 0, noise = y: dy/dt = v, from t = 1 to 0 in equal steps.
    seen = []

    def denoise(x, sigma):
        t = sigma / (1 + sigma)
        seen.append(t)
        y = x / (1 + sigma)
        return y - t * (0.3 * y)  # velocity 0.3 y

    sigmas = flow_sigmas(4, shift=1.0)
    y = torch.tensor([2.0], dtype=torch.float64)
    out = euler(denoise, y * (1 + sigmas[0]), sigmas, None, "flow")
    assert seen == pytest.approx([1, 0.75, 0.5, 0.25], abs=1e-4)
    torch.testing.assert_close(out, y * (1 - 0.25 * 0.3) ** 4, rtol=1e-4, atol=0)
    shifted = [s / (1 + s) for s in flow_sigmas(4, shift=3.0)]
    assert shifted == pytest.approx([1, 0.9, 0.75, 0.5, 0], abs=1e-4)


@pytest.mark.parametrize("path", ["edm", "flow"])
def test_samples_have_the_data_s_spread(path):
    torch.manual_seed(0)
    sigmas = karras_sigmas(40, 0.002, 80.0, 7.0) if path == "edm" else flow_sigmas(80, 1.0)
    x = torch.randn(20_000) * sigmas[0]
    out = heun(exact, x, sigmas, None, path)
    assert abs(out.std() - STD) < 0.012
    assert out.dtype == x.dtype


def test_number_of_evaluations_and_steps():
    calls, steps = [], []

    def counting(x, sigma):
        calls.append(sigma)
        return exact(x, sigma)

    sigmas = karras_sigmas(5, 0.1, 10.0, 7.0)
    heun(counting, torch.ones(1), sigmas, steps.append)
    assert len(calls) == 2 * 5 - 1 and min(calls) > 0
    assert steps == [1, 2, 3, 4, 5]


def test_karras_schedule():
    sigmas = karras_sigmas(18, 0.002, 80.0, 7.0)
    assert sigmas[0] == pytest.approx(80) and sigmas[-2] == pytest.approx(0.002)
    assert sigmas[-1] == 0 and sorted(sigmas, reverse=True) == sigmas and len(sigmas) == 19


def test_guidance_is_one_call_of_two_packs():
    calls = []

    def network(x, c_noise, text, layout):
        # Says how much text each token's sample has.
        calls.append(layout)
        lens = torch.tensor(layout.lens_text, dtype=x.dtype)
        return layout.spread(lens)[:, None].expand_as(x)

    layout = PackLayout.build([(1, 1, 2), (2, 1, 1)], [3, 5], torch.tensor([0.0, 24.0]))
    text, x = torch.zeros(8, 4), torch.zeros(4, 2)
    denoiser = Denoiser(network, precondition("edm", 0.5))
    c_out = precondition("edm", 0.5)(torch.tensor(2.0)).c_out
    for scale in (0.0, 1.0, 3.0):
        calls.clear()
        out = guided(denoiser, text, layout, scale)(x, 2.0)
        expected = scale * torch.tensor([3.0, 3, 5, 5]) * c_out
        torch.testing.assert_close(out[:, 0], expected)
        assert len(calls) == 1
    assert calls[0].lens_text == (3, 5, 0, 0) and calls[0].fps.tolist() == [0, 24, 0, 24]


def test_bad_requests_name_the_mend():
    with pytest.raises(ConfigError, match="sampler.name=hun is not known.*heun"):
        SamplerConfig(name="hun")
    with pytest.raises(ConfigError, match="sigma_min=90"):
        SamplerConfig(sigma_min=90)
    with pytest.raises(ConfigError, match="sampler.rho must lie in 0.1 to 100, got 0"):
        SamplerConfig(rho=0)
    for bad in (math.nan, math.inf, -1.0):
        with pytest.raises(ConfigError, match="guidance_scale must lie in 0 to 1000"):
            SamplerConfig(guidance_scale=bad)
    for bad in (math.nan, math.inf):
        with pytest.raises(ConfigError, match="sigma_max must lie in 0 to 1e6"):
            SamplerConfig(sigma_max=bad)
    with pytest.raises(ConfigError, match="seed=-9223372036854775809 must lie within 64 bits"):
        GenerateConfig(checkpoint="x", prompt="y", output="z.mp4", seed=-(2**63) - 1)
    with pytest.raises(ConfigError, match="fps must lie in 0.01 to 1000, got nan"):
        GenerateConfig(checkpoint="x", prompt="y", output="z.mp4", fps=math.nan)
    with pytest.raises(ConfigError, match="must end in .mp4"):
        GenerateConfig(checkpoint="x", prompt="y", output="z.avi")
    with pytest.raises(ConfigError, match="num_frames must lie in 1 to 100000, got 0"):
        GenerateConfig(checkpoint="x", prompt="y", output="z.mp4", num_frames=0)
