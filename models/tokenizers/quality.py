"""How near two videos are: structural similarity, as a measure and as a loss.

Wang, Bovik, Sheikh and Simoncelli 2004 (SSIM); Wang, Simoncelli and Bovik 2003 (multi-scale).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_SIZE, _SIGMA = 11, 1.5
_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Of the scales, fine to coarse: Wang et al. 2003, section 3.2."""


def ssim(a: Tensor, b: Tensor) -> float:
    """Mean SSIM over the frames and colours of two videos `uint8 [T, H, W, 3]`; 1 where equal."""
    pair = [v.movedim(-1, 1).double().flatten(0, 1)[None] for v in (a, b)]
    luminance, structure = _terms(*pair, peak=255.0)
    return float((luminance * structure).mean())


def ms_ssim(a: Tensor, b: Tensor, *, peak: float) -> Tensor:
    """Multi-scale SSIM of videos `[B, 3, T, H, W]`, a scalar that has gradients.

    As many scales as leave the window room, their weights then summing to 1 all the same.
    """
    x, y = (v.movedim(2, 1).flatten(0, 2)[None] for v in (a, b))
    scales = 1
    while scales < len(_WEIGHTS) and min(x.shape[-2:]) >> scales >= _SIZE:
        scales += 1
    weights = [w / sum(_WEIGHTS[:scales]) for w in _WEIGHTS[:scales]]
    value = x.new_ones(())
    for i, weight in enumerate(weights):
        luminance, structure = _terms(x, y, peak=peak)
        last = i == scales - 1
        term = (luminance * structure if last else structure).mean((0, 2, 3))
        # Below zero the power has no gradient; pictures that far apart are rare.
        value = value * term.clamp(min=1e-3) ** weight
        x, y = F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)
    return value.mean()


def _terms(x: Tensor, y: Tensor, *, peak: float) -> tuple[Tensor, Tensor]:
    """Luminance, and contrast times structure, at every place of `[1, N, H, W]`.

    Pictures smaller than the window get a window of their own size.
    """
    rows, columns = (_gaussian(min(_SIZE, n), x) for n in x.shape[-2:])
    first, second = (0.01 * peak) ** 2, (0.03 * peak) ** 2

    n = x.shape[1]

    def blur(v: Tensor) -> Tensor:
        # Pictures as channels of their own: that convolution is 20 times faster on a processor.
        v = F.conv2d(v, rows[None, None, :, None].expand(n, 1, -1, 1), groups=n)
        return F.conv2d(v, columns[None, None, None].expand(n, 1, 1, -1), groups=n)

    mean_x, mean_y = blur(x), blur(y)
    var_x = blur(x * x) - mean_x**2
    var_y = blur(y * y) - mean_y**2
    both = blur(x * y) - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + first) / (mean_x**2 + mean_y**2 + first)
    return luminance, (2 * both + second) / (var_x + var_y + second)


def _gaussian(size: int, like: Tensor) -> Tensor:
    place = torch.arange(size, dtype=like.dtype, device=like.device) - (size - 1) / 2
    weight = torch.exp(-(place**2) / (2 * _SIGMA**2))
    return weight / weight.sum()
