"""Drawing discrete tokens one after the other, from an autoregressive network.

Legend: B samples of one size, s tokens of each, V codes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from common import rng
from inference.config import TokenSamplerConfig
from models.autoregressive import Autoregressive
from models.pack import PackLayout


def draw_tokens(
    network: Autoregressive,
    text: Tensor,
    layout: PackLayout,
    config: TokenSamplerConfig,
    keys: Tensor,
    *,
    given: Tensor | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Tensor:
    """Codes `int64 [B, s]` of B samples, each token by the probabilities that the network gives.

    With a `guidance_scale` g other than 1 the logits are `l_u + g (l_c - l_u)`, of a network with
    and without text. The number that decides token i of a sample is a function of the sample's
    key and of i alone.

    Args:
        keys: `int64 [B, 2]`.
        given: `int64 [m]`, the first tokens of every sample, m < s.
        on_step: told the tokens that are there.
    """
    rows, size = len(layout.grids), layout.lens[0]
    guided = config.guidance_scale != 1.0
    if guided:
        layout = PackLayout(layout.grids * 2, layout.lens_text + (0,) * rows, layout.fps.repeat(2))
    cache = network.begin(text, layout)
    copies = 2 if guided else 1
    codes = torch.empty(rows, size, dtype=torch.int64, device=text.device)
    done = 0 if given is None else len(given)
    if given is not None:
        codes[:, :done] = given
    start = codes.new_full((rows, 1), network.start)
    before = torch.cat([start, codes[:, :done]], dim=1)
    for i in range(done, size):
        logits = network.extend(before.repeat(copies, 1), cache)[:, -1].double()
        if guided:
            with_text, without = logits.chunk(2)
            logits = without + config.guidance_scale * (with_text - without)
        place = torch.full((rows,), i, dtype=torch.int64, device=keys.device)
        codes[:, i] = pick(logits, config, rng.uniform(keys, place).to(logits))
        before = codes[:, i : i + 1]
        if on_step:
            on_step(i + 1)
    return codes


def pick(logits: Tensor, config: TokenSamplerConfig, uniform: Tensor) -> Tensor:
    """One code a row: `logits [B, V]` and `uniform [B]` in [0, 1) to `int64 [B]`.

    Logits are divided by the temperature (0: the likeliest is taken); of those that remain under
    `top_k` and then `top_p` (Holtzman et al. 2020) one is drawn by its share.
    """
    if config.temperature == 0:
        return logits.argmax(-1)
    ordered, index = (logits / config.temperature).sort(dim=-1, descending=True, stable=True)
    shares = ordered.softmax(-1)
    if config.top_k:
        shares[:, config.top_k :] = 0
    # Kept are the likeliest whose shares first reach top_p.
    shares = shares / shares.sum(-1, keepdim=True)
    before = shares.cumsum(-1) - shares
    shares = shares.masked_fill(before >= config.top_p, 0)
    ends = shares.cumsum(-1)
    chosen = (ends <= uniform[:, None] * ends[:, -1:]).sum(-1)
    # Rounding may leave the very end over.
    last = (shares > 0).sum(-1) - 1
    return index.gather(1, torch.minimum(chosen, last)[:, None])[:, 0]
