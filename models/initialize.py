"""Initial weights, in one place, drawn by parameter name.

Each parameter has its own counter-based stream keyed by its name, so that a model starts from the
same values on any device and under any split over ranks.
"""

import math
import re

import torch
from torch import Tensor, nn

from common import rng

ZERO = re.compile(
    r"(modulation(\.dense|\.up\.\d+|\.1)?|final\.project|condition\.shared|prefix\.mask|"
    r"actions\.leave|"
    r"log_variance)"
    r"\.(weight|bias)"
)
"""Weights that start at zero, and why:
- modulation, and the vector that its sub-blocks share: every gate is 0, so each block begins as the
  identity (DiT, AdaLN-zero). Of a low-rank modulation it is the second half, so that its product is
  0 and yet has a gradient;
- prefix.mask, actions.leave, actions.null: a network that learned without given frames or actions
  goes on from what it knows;
- log_variance: all noise levels count alike;
- final.project: the network begins by predicting 0, and the denoiser by c_skip * x."""
SMALL = re.compile(
    r"condition\.(noise|fps|down)\.weight|text\.null|classes\.table|codes\.weight|head\.weight|learned_positions\.[thw]"
)
"""Embeddings, normal(0.02) as in DiT."""


def initialize(model: nn.Module, seed: int) -> None:
    """Fills all parameters in place. Matrices get Xavier's variance (Glorot and Bengio 2010)."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter.copy_(_initial(name, parameter, seed))


def fan_in_normal(name: str, parameter: Tensor, seed: int) -> Tensor:
    """Normal with variance 2 / fan_in (He et al. 2015, eq. 10), for convolutions."""
    fan_in = parameter[0].numel()
    return _named_normal(name, parameter, seed) * math.sqrt(2.0 / fan_in)


def _initial(name: str, parameter: Tensor, seed: int) -> Tensor:
    if ZERO.search(name) or name == "actions.null":
        return torch.zeros_like(parameter)
    module, _, leaf = name.rpartition(".")
    if leaf == "weight" and "norm" in module.rpartition(".")[2]:
        return torch.ones_like(parameter)
    if name.endswith("bias"):
        return torch.zeros_like(parameter)
    values = _named_normal(name, parameter, seed)
    if SMALL.search(name):
        return values * 0.02
    fan_out, fan_in = parameter.shape
    return values * math.sqrt(2.0 / (fan_in + fan_out))


def _named_normal(name: str, parameter: Tensor, seed: int) -> Tensor:
    rows = torch.arange(math.ceil(parameter.numel() / 4), device=parameter.device)
    key = rng.key(seed, "initialize", sample_id=name).to(parameter.device)
    values = rng.normal_rows(key, rows, 4).flatten()[: parameter.numel()]
    return values.view(parameter.shape)
