"""Finds out what kind of tokenizer a folder holds, and loads it."""

from pathlib import Path

import torch

from models.tokenizers.base import VideoTokenizer
from models.tokenizers.causal import CausalTokenizer


def load_tokenizer(folder: Path, device: torch.device | None = None) -> VideoTokenizer:
    """The tokenizer saved in `folder`, on `device` (the CPU where none is given).

    Raises `DataError` naming what is missing or wrong.
    """
    return CausalTokenizer.load(folder).to(device or torch.device("cpu"))
