"""Wiring tier: structural similarity against its formula written out."""

import torch

from models.tokenizers.quality import ms_ssim, ssim


def by_hand(a: torch.Tensor, b: torch.Tensor) -> float:
    """Wang et al. 2004, equation 13, window by window; `[H, W]` in 0 .. 255."""
    place = torch.arange(11, dtype=torch.float64) - 5
    weight = torch.exp(-(place[:, None] ** 2 + place[None] ** 2) / (2 * 1.5**2))
    weight /= weight.sum()
    values = []
    for y in range(a.shape[0] - 10):
        for x in range(a.shape[1] - 10):
            p, q = (v[y : y + 11, x : x + 11].double() for v in (a, b))
            mp, mq = (weight * p).sum(), (weight * q).sum()
            vp, vq = (weight * (p - mp) ** 2).sum(), (weight * (q - mq) ** 2).sum()
            both = (weight * (p - mp) * (q - mq)).sum()
            c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
            top = (2 * mp * mq + c1) * (2 * both + c2)
            values.append(float(top / ((mp**2 + mq**2 + c1) * (vp + vq + c2))))
    return sum(values) / len(values)


def test_ssim_is_its_formula():
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(0, 256, (1, 16, 14, 3), generator=generator, dtype=torch.uint8)
    b = (a.int() + torch.randint(-40, 40, a.shape, generator=generator)).clamp(0, 255)
    b = b.to(torch.uint8)
    expected = sum(by_hand(a[0, ..., c], b[0, ..., c]) for c in range(3)) / 3
    assert abs(ssim(a, b) - expected) < 1e-9 and ssim(a, a) == 1.0


def test_ms_ssim_falls_with_distance_and_has_gradients():
    generator = torch.Generator().manual_seed(0)
    real = torch.rand(2, 3, 2, 64, 48, generator=generator) * 2 - 1
    noise = torch.randn(real.shape, generator=generator)
    values = [float(ms_ssim(real + s * noise, real, peak=2.0)) for s in (0.0, 0.1, 0.5)]
    assert abs(values[0] - 1) < 1e-5 and values[0] > values[1] > values[2] > 0
    made = (real + 0.3 * noise).requires_grad_()
    ms_ssim(made, real, peak=2.0).backward()
    assert made.grad is not None and made.grad.isfinite().all() and made.grad.abs().max() > 0


def test_small_pictures_have_a_small_window():
    tiny = torch.rand(1, 3, 1, 4, 6) * 2 - 1
    assert abs(float(ms_ssim(tiny, tiny, peak=2.0)) - 1) < 1e-5
