"""What is done in a video that is to be made, from a file."""

import json
from pathlib import Path

import torch
from torch import Tensor

from common.errors import ConfigError
from inference.config import GenerateConfig
from inference.loading import Generator
from inference.shape import VideoShape
from models.family import action_dim


def read_actions(config: GenerateConfig, generator: Generator, shape: VideoShape) -> Tensor | None:
    """An action for each frame, `float32 [T, a]`; None where the request gives none.

    Raises `ConfigError` for a file that holds something else than the model was trained with.
    """
    if config.actions is None:
        return None
    dim, path = action_dim(generator.spec.model), config.actions
    if not dim:
        raise ConfigError(
            f"actions={path}: this model was told no actions in training; one that is, is trained "
            "with model.action_dim"
        )
    try:
        values = torch.tensor(json.loads(Path(path).read_text()), dtype=torch.float32)
    except OSError as error:
        raise ConfigError(f"actions={path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"actions={path} holds no list of lists of numbers: {error}") from None
    if values.ndim == 1:
        values = values[None]
    if values.ndim != 2 or values.shape[1] != dim or len(values) not in (1, shape.num_frames):
        raise ConfigError(
            f"actions={path} holds numbers of shape {tuple(values.shape)}; needed are [{dim}] for "
            f"all frames, or [{shape.num_frames}, {dim}] for each"
        )
    if not values.isfinite().all():
        raise ConfigError(f"actions={path} holds a number that is not finite")
    return values.expand(shape.num_frames, dim)
