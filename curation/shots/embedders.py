"""Embeddings of pictures by a model of transformers, such as CLIP, from a local folder."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import VfmError

Embed = Callable[[np.ndarray], np.ndarray]
"""BGR `uint8 [H, W, 3]` to `float32 [D]` of unit length."""


def folder_embedder(folder: str, device: str) -> Embed:
    """Raises `VfmError` where transformers or the folder is missing, or holds no such model."""
    processor, model = _loaded(folder, device)

    def embed(bgr: np.ndarray) -> np.ndarray:
        import torch

        with torch.inference_mode():
            inputs = processor(images=np.ascontiguousarray(bgr[..., ::-1]), return_tensors="pt")
            inputs = inputs.to(device)
            if hasattr(model, "get_image_features"):
                features = model.get_image_features(**inputs)
            else:
                features = model(**inputs)
            features = getattr(features, "pooler_output", features)
        vector = features[0].float().cpu().numpy()
        return vector / np.linalg.norm(vector)

    return embed


@functools.cache
def _loaded(folder: str, device: str) -> tuple[Any, Any]:
    if not Path(folder).is_dir():
        raise VfmError(
            f"shots.embedder={folder}: there is no such folder; give layout, or a folder with an "
            "image model of transformers (config.json, model.safetensors, preprocessor_config.json)"
        )
    try:
        from transformers import AutoImageProcessor, AutoModel
    except ImportError as error:
        raise VfmError(
            f"shots.embedder={folder} needs the package transformers ({error}); or give layout"
        ) from None
    try:
        processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
        model = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    except (OSError, ValueError) as error:
        raise VfmError(
            f"shots.embedder={folder} holds no image model that transformers can load: "
            f"{str(error).splitlines()[0]}"
        ) from None
    return processor, model.to(device).eval()
