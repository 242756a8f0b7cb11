"""Checks of a network's shape, with messages that name the key, the value and the rule."""

import math
from typing import Any

from common.errors import ConfigError


def check_at_least(config: Any, name: str, least: int) -> None:
    """Raises `ConfigError` where the whole number `config.NAME` is below `least`."""
    if getattr(config, name) < least:
        raise ConfigError(f"model.{name} must be at least {least}, got {getattr(config, name)}")


def check_positive(config: Any, name: str) -> None:
    """Raises `ConfigError` where `config.NAME`, or one of its three values for (t, h, w), is not a
    positive and finite number."""
    value = getattr(config, name)
    values = value if isinstance(value, list) else [value]
    if (isinstance(value, list) and len(value) != 3) or not all(0 < v < math.inf for v in values):
        three = "three positive numbers (t, h, w)" if isinstance(value, list) else "positive"
        raise ConfigError(f"model.{name} must be {three}, got {value}")


def check_sizes(config: Any, name: str) -> None:
    """Raises `ConfigError` where `config.NAME` is not three whole numbers from 1 on (t, h, w)."""
    sizes = getattr(config, name)
    if len(sizes) != 3 or min(sizes) < 1:
        raise ConfigError(f"model.{name} must be three positive sizes, got {sizes}")


def check_ffn_size(config: Any) -> None:
    """Raises `ConfigError` where `mlp_ratio` leaves an MLP of no feature."""
    if config.ffn_size < 1:
        raise ConfigError(
            f"model.mlp_ratio={config.mlp_ratio} of model.hidden_size={config.hidden_size} leaves "
            "the MLP no feature"
        )


def check_head_dim(config: Any, *, rotary: bool = True) -> None:
    """Raises `ConfigError` where `hidden_size` does not divide into heads, or into such as 3D
    rotary positions can turn."""
    if config.hidden_size % config.num_heads:
        raise ConfigError(
            f"model.hidden_size={config.hidden_size} is not divisible by "
            f"model.num_heads={config.num_heads}"
        )
    head_dim = config.hidden_size // config.num_heads
    if rotary and (head_dim % 2 or head_dim < 6):
        raise ConfigError(
            f"model.hidden_size/num_heads = {head_dim}; 3D rotary positions need an even head "
            "size of at least 6"
        )
