"""The text encoders that can be chosen, by the `kind` of their configuration."""

from typing import Any

import torch

from models.text.base import TextEncoder
from models.text.hashed import HashedTextConfig, HashedTextEncoder
from models.text.hub import HubTextConfig, HubTextEncoder

TextConfig = HashedTextConfig | HubTextConfig


def make_text_encoder(config: TextConfig, device: torch.device) -> TextEncoder:
    """The encoder. Raises `ConfigError` or `DataError` naming what is missing."""
    if isinstance(config, HubTextConfig):
        return HubTextEncoder.load(config, device)
    return HashedTextEncoder(config)


def text_config_from_json(raw: dict[str, Any]) -> TextConfig:
    """The configuration that `dataclasses.asdict` gave. Raises `TypeError` for what is no such."""
    kinds = {"hashed": HashedTextConfig, "hub": HubTextConfig}
    return kinds[raw["kind"]](**raw)
