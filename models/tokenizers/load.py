"""Finds out what kind of tokenizer a path names, and loads it."""

import json
from pathlib import Path

import torch

from models.tokenizers.base import VideoTokenizer
from models.tokenizers.causal import CausalTokenizer
from models.tokenizers.hub import KIND, HubTokenizer, Precision


def load_tokenizer(
    path: str | Path, device: torch.device | None = None, *, precision: Precision = "fp32"
) -> VideoTokenizer:
    """A tokenizer that vfm saved, an autoencoder in the layout of diffusers, or a hub id of one.

    Args:
        device: the CPU where none is given.
        precision: of an autoencoder of diffusers; ours is always fp32.
    Raises `ConfigError` or `DataError` naming what is missing or wrong.
    """
    device = device or torch.device("cpu")
    folder = Path(path).expanduser()
    kept = _config(folder)
    if kept.get("kind") == KIND:
        return HubTokenizer.again(folder, kept).to(device)
    foreign = "_class_name" in kept or (folder / "vae").is_dir()
    if foreign or (not folder.exists() and isinstance(path, str) and path.count("/") == 1):
        return HubTokenizer.load(str(path), precision).to(device)
    return CausalTokenizer.load(folder).to(device)


def _config(folder: Path) -> dict[str, object]:
    """Of a folder that may be none; what cannot be read is left to who loads it."""
    try:
        raw = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}
