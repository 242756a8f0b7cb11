"""AdamW with its learning rate as a pure function of the step, and its state by name."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from training.config import OptimizerConfig

_STATE = ("exp_avg", "exp_avg_sq", "step")


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """The rate of step number `step`, counted from 0."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    span = max(total_steps - config.warmup_steps, 1)
    return config.lr * 0.5 * (1 + math.cos(math.pi * (step - config.warmup_steps) / span))


def make_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.AdamW:
    """AdamW; vectors (norms, biases, the null token) are not decayed."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.squeeze().ndim > 1]},
        {"params": [p for p in parameters if p.squeeze().ndim <= 1], "weight_decay": 0.0},
    ]
    beta1, beta2 = config.betas
    return torch.optim.AdamW(
        groups,
        lr=config.lr,
        betas=(beta1, beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def optimizer_tensors(
    optimizer: torch.optim.AdamW, parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """The optimizer's state as `NAME.exp_avg`, `NAME.exp_avg_sq`, `NAME.step`."""
    return {
        f"{name}.{kind}": optimizer.state[parameter][kind]
        for name, parameter in parameters.items()
        for kind in _STATE
        if parameter in optimizer.state
    }


def expected_tensors(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Names and shapes that `optimizer_tensors` has after the first step."""
    return {
        f"{name}.{kind}": torch.zeros(()) if kind == "step" else parameter
        for name, parameter in parameters.items()
        for kind in _STATE
    }


def load_optimizer_tensors(
    optimizer: torch.optim.AdamW,
    parameters: Mapping[str, nn.Parameter],
    tensors: Mapping[str, Tensor],
) -> None:
    """Puts back what `optimizer_tensors` gave."""
    for name, parameter in parameters.items():
        state = {kind: tensors[f"{name}.{kind}"] for kind in _STATE}
        optimizer.state[parameter] = {
            # Fused, the step count lives beside the weights too.
            kind: value.to(parameter.device)
            for kind, value in state.items()
        }
