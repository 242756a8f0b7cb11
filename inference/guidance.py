"""Classifier-free guidance (Ho and Salimans 2022, eq. 6)."""

import torch
from torch import Tensor

from inference.samplers import Denoise
from models.objectives.loss import Denoiser
from models.pack import Actions, PackLayout, Prefix


def guided(
    denoiser: Denoiser,
    text: Tensor,
    layout: PackLayout,
    scale: float,
    *,
    null_label: int | None = None,
) -> Denoise:
    """`D_u + scale * (D_c - D_u)`: scale 1 follows the text alone, 0 ignores it.

    With and without text go through the network as one pack of twice the samples, so a step costs
    one call.

    Args:
        null_label: the label that means no class, where `text` holds class labels `[n]`.
    """
    n = len(layout.grids)
    if scale == 1.0:
        return lambda x, sigma: denoiser(x, x.new_full((n,), sigma), text, layout)
    prefix, actions = layout.prefix, layout.actions
    both = PackLayout(
        layout.grids * 2,
        layout.lens_text + (0,) * n,
        layout.fps.repeat(2),
        prefix=None if prefix is None else Prefix(prefix.lens * 2, prefix.sigma.repeat(2)),
        actions=actions and Actions(actions.values.repeat(2, 1), actions.given * 2),
    )

    if null_label is not None:
        text = torch.cat([text, torch.full_like(text, null_label)])

    def denoise(x: Tensor, sigma: float) -> Tensor:
        twice = denoiser(torch.cat([x, x]), x.new_full((2 * n,), sigma), text, both)
        with_text, without = twice.chunk(2)
        return without + scale * (with_text - without)

    return denoise
