"""Blocks of diffusers and ours, with the same sub-blocks, as subjects of a comparison."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._model_step import Subject, filled, make_subject
from models.attention import local_attention
from models.dit import DiTBlock
from models.layers import MLP, PlainLinears
from models.multihead import HeadShape
from models.pack import PackLayout
from models.positions import RotaryPositions3D
from models.wan import WanBlock, WanConfig

TEXT_TOKENS = 512


class _Given(nn.Module):
    """Stands where diffusers' block computes its conditioning, and gives the one it was given."""

    def __init__(self, condition: Tensor) -> None:
        super().__init__()
        self.condition = condition

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        return self.condition


def dit_subjects(samples: int, dtype: torch.dtype, device: torch.device) -> list[Subject] | str:
    """DiT-B/2: diffusers' block, and ours with its sub-blocks, biases and no norms of q and k."""
    try:
        from diffusers.models.attention import BasicTransformerBlock
    except ImportError:
        return "not run: diffusers is not installed"
    h, heads = 768, 12
    torch.manual_seed(0)
    x = torch.randn(samples, 256, h).to(device, dtype)
    condition = torch.randn(samples, h).to(device, dtype)
    theirs: Any = BasicTransformerBlock(
        h,
        heads,
        h // heads,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=10,
        attention_bias=True,
        norm_type="ada_norm_zero",
        norm_elementwise_affine=False,
    )
    theirs.norm1.emb = None
    theirs = filled(theirs, dtype, device)
    theirs.norm1.emb = _Given(condition)
    linears = PlainLinears()
    shape = HeadShape(dim=h, num_heads=heads, qk_norm="none", bias=True)
    mlp = MLP(h, 4 * h, linears, bias=True)
    ours = filled(DiTBlock(shape, None, mlp, 0, local_attention, linears), dtype, device)
    layout = PackLayout.build([(1, 16, 16)] * samples, [0] * samples, torch.zeros(samples))
    layout = replace(layout, fps=layout.fps.to(device))
    _check_weights(theirs, ours)
    return [
        make_subject("diffusers", theirs, lambda x: theirs(x), x.clone().requires_grad_()),
        make_subject(
            "vfm",
            ours,
            lambda x: ours(x, condition, None, None, layout, None),
            x.flatten(0, 1).requires_grad_(),
        ),
    ]


def wan_blocks(dtype: torch.dtype, device: torch.device) -> tuple[Any, Any, WanConfig] | str:
    try:
        from diffusers.models.transformers.transformer_wan import WanTransformerBlock
    except ImportError:
        return "not run: diffusers is not installed"
    config = WanConfig()
    theirs = WanTransformerBlock(
        config.hidden_size, config.ffn_size, config.num_heads, cross_attn_norm=True
    )
    ours = WanBlock(config, local_attention, PlainLinears())
    _check_weights(theirs, ours)
    return filled(theirs, dtype, device), filled(ours, dtype, device), config


def _check_weights(theirs: nn.Module, ours: nn.Module) -> None:
    counts = [sum(p.numel() for p in block.parameters()) for block in (theirs, ours)]
    assert counts[0] == counts[1], f"blocks of {counts} weights are not the same sub-blocks"


def _wan_theirs(theirs: Any, config: WanConfig, grids: list[tuple[int, int, int]]) -> Any:
    """Diffusers' rotary positions for a batch whose rows have the longest of the grids."""
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

    rope = WanRotaryPosEmbed(config.hidden_size // config.num_heads, (1, 2, 2), 1024)
    longest = max(grids)
    frame = torch.zeros(1, 1, longest[0], 2 * longest[1], 2 * longest[2])
    parameter = next(theirs.parameters())
    return tuple(part.to(parameter.device) for part in rope(frame))


def wan_side(
    name: str, block: Any, config: WanConfig, grids: list[tuple[int, int, int]], *, ours: bool
) -> Subject:
    """One subject over samples of `grids`; diffusers' side takes them as a padded batch."""
    parameter = next(block.parameters())
    where = {"device": parameter.device, "dtype": parameter.dtype}
    n, h = len(grids), config.hidden_size
    torch.manual_seed(0)
    modulation = torch.randn(n, 6, h).to(**where)
    text = torch.randn(n, TEXT_TOKENS, h).to(**where)
    if not ours:
        rotary = _wan_theirs(block, config, grids)
        t, height, width = max(grids)
        x = torch.randn(n, t * height * width, h).to(**where).requires_grad_()
        return make_subject(name, block, lambda x: block(x, text, modulation, rotary), x)
    layout = PackLayout.build(grids, [TEXT_TOKENS] * n, torch.zeros(n, device=parameter.device))
    positions = RotaryPositions3D(h // config.num_heads, base_fps=None)
    turned = positions(layout, parameter.dtype)
    x = torch.randn(layout.num_tokens, h).to(**where).requires_grad_()
    flat = text.flatten(0, 1)
    return make_subject(name, block, lambda x: block(x, modulation, flat, layout, turned), x)


def wan_subjects(samples: int, dtype: torch.dtype, device: torch.device) -> list[Subject] | str:
    """Wan 2.1 1.3B: diffusers' block and ours, with the same sub-blocks."""
    blocks = wan_blocks(dtype, device)
    if isinstance(blocks, str):
        return blocks
    theirs, ours, config = blocks
    grids = [(1, 16, 16)] * samples
    return [
        wan_side("diffusers", theirs, config, grids, ours=False),
        wan_side("vfm", ours, config, grids, ours=True),
    ]


UNEQUAL = (256, 192, 128, 64)
"""Tokens of the samples of the packed case: the mean is 0.625 of the longest."""


def packed_subjects(dtype: torch.dtype, device: torch.device) -> list[Subject] | str:
    """Samples of unequal lengths: padded by diffusers and by us, and packed."""
    blocks = wan_blocks(dtype, device)
    if isinstance(blocks, str):
        return blocks
    theirs, ours, config = blocks
    grids = [(1, n // 16, 16) for n in UNEQUAL]
    padded = [max(grids)] * len(grids)
    return [
        wan_side("diffusers, padded", theirs, config, grids, ours=False),
        wan_side("vfm, padded", ours, config, padded, ours=True),
        wan_side("vfm, packed", ours, config, grids, ours=True),
    ]
