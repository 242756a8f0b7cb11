"""A pack of different samples, and what every network must do with it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.pack import Actions, PackLayout, Prefix

GRIDS = [(3, 2, 4), (1, 4, 2), (2, 2, 2)]
LENS_TEXT = [3, 0, 5]
TOKEN_DIM, TEXT_DIM = 12, 16


def make_pack(
    lens_text: list[int] = LENS_TEXT,
    dtype: torch.dtype = torch.float64,
    prefix_lens: tuple[int, ...] | None = None,
    actions: Actions | None = None,
) -> tuple[Tensor, Tensor, Tensor, PackLayout]:
    """Tokens, noise levels, text and layout of three samples that differ in all of them."""
    prefix = None if prefix_lens is None else Prefix(prefix_lens, torch.tensor([0.3, 0.1, 0.0]))
    torch.manual_seed(0)
    layout = PackLayout.build(GRIDS, lens_text, torch.tensor([24.0, 0.0, 12.0]), prefix, actions)
    x = torch.randn(layout.num_tokens, TOKEN_DIM, dtype=dtype)
    text = torch.randn(sum(lens_text), TEXT_DIM, dtype=dtype)
    return x, torch.tensor([-0.5, 0.1, 0.7], dtype=dtype), text, layout


def random_weights(model: nn.Module, seed: int = 1) -> None:
    """All of them, also those that training starts from zero: zeros would hide errors."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn * 0.1 + (parameter == 1))


def assert_packs_as_alone(
    model: nn.Module, x: Tensor, c_noise: Tensor, text: Tensor, layout: PackLayout
) -> None:
    """Outputs and all gradients of the pack are those of its samples, each alone."""

    def run(forward: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        inputs = {"x": x.clone().requires_grad_(), "text": text.clone().requires_grad_()}
        out = forward(inputs["x"], inputs["text"])
        (out * weight).sum().backward()
        leaves = {**inputs, **dict(model.named_parameters())}
        return out.detach(), {n: p.grad for n, p in leaves.items() if p.grad is not None}

    def alone(x: Tensor, text: Tensor) -> Tensor:
        texts = text.split(list(layout.lens_text))
        pieces = [
            model(piece, c_noise[i : i + 1], texts[i], layout_alone(layout, i))
            for i, piece in enumerate(x.split(layout.lens))
        ]
        return torch.cat(pieces)

    weight = torch.randn(x.shape, dtype=x.dtype)
    packed, packed_grads = run(lambda x, text: model(x, c_noise, text, layout))
    single, single_grads = run(alone)
    assert packed_grads.keys() == single_grads.keys() and len(packed_grads) > 10
    check_close(packed, single, "output")
    for name, gradient in packed_grads.items():
        check_close(gradient, single_grads[name], f"gradient of {name}")


def layout_alone(layout: PackLayout, i: int) -> PackLayout:
    """Of sample i of a pack."""
    prefix, here = layout.prefix, slice(i, i + 1)
    if prefix is not None:
        prefix = Prefix(prefix.lens[here], prefix.sigma[here])
    actions = layout.actions
    if actions is not None:
        parts = actions.values.split([t for t, _, _ in layout.grids])
        actions = Actions(parts[i], actions.given[here])
    return PackLayout.build(
        layout.grids[here], layout.lens_text[here], layout.fps[here], prefix, actions
    )


def check_close(found: Tensor, wanted: Tensor, what: str) -> None:
    """Within 1e-10 in double precision, 1e-5 in single, of the largest value (at least 1)."""
    tolerance = 1e-10 if wanted.dtype == torch.float64 else 1e-5
    assert found.shape == wanted.shape, f"{what}: {found.shape} and {wanted.shape}"
    error = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1))
    assert error <= tolerance, f"{what} is off by {error:.1e}"
