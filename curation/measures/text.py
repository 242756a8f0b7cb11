"""Where text stands in a picture: PP-OCR's detector, without reading it.

The network is the one that the package `rapidocr` brings along; it is run by `onnxruntime` on one
core, so that its results do not depend on the number of workers.
"""

import functools
import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import cv2
import numpy as np

_STRIDE = 32
_LIKELY = 0.3
_SURE = 0.6
_GROWTH = 1.6
"""Of a region of the network's map, which it shrinks in training; Liao et al. 2020, "Real-time
scene text detection with differentiable binarization", section 3.3."""
_TALLEST = 0.25
"""Of the picture's shorter side: what is taller is no line of text."""
_MEND = "pip install rapidocr onnxruntime"


class TextDetector:
    """Args:
    session: an `onnxruntime.InferenceSession` of a text detector.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._input = session.get_inputs()[0].name

    def find(self, bgr: np.ndarray) -> np.ndarray:
        """`uint8 [H, W]`: 1 where text stands in `uint8 [H, W, 3]`."""
        height, width = bgr.shape[:2]
        size = [max(_STRIDE, round(n / _STRIDE) * _STRIDE) for n in (width, height)]
        scaled = cv2.resize(bgr, (size[0], size[1]), interpolation=cv2.INTER_LINEAR)
        values = (scaled.astype(np.float32) / 127.5 - 1).transpose(2, 0, 1)[None]
        (chances,) = self._session.run(None, {self._input: values})
        return cv2.resize(_boxes(chances[0, 0]), (width, height), interpolation=cv2.INTER_NEAREST)


def _boxes(chances: np.ndarray) -> np.ndarray:
    """`uint8`, as `chances` (`float32 [H, W]`): 1 in the rectangles around likely regions."""
    found = np.zeros(chances.shape, np.uint8)
    likely = (chances > _LIKELY).astype(np.uint8)
    outlines, _ = cv2.findContours(likely, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    for outline in outlines:
        middle, (width, height), angle = cv2.minAreaRect(outline)
        if min(width, height) < 2:
            continue
        inside = np.zeros_like(found)
        cv2.drawContours(inside, [outline], -1, 1, -1)
        grown = _GROWTH * width * height / (width + height)
        tall = min(width, height) + grown > _TALLEST * min(chances.shape)
        if tall or cv2.mean(chances, inside)[0] < _SURE:
            continue
        corners = cv2.boxPoints((middle, (width + grown, height + grown), angle))
        cv2.fillPoly(found, [np.round(corners).astype(np.int32)], 1)
    return found


def why_absent() -> str | None:
    """Why text cannot be found on this machine, with the mend; None where it can."""
    for name in ("onnxruntime", "rapidocr"):
        if importlib.util.find_spec(name) is None:
            return f"the package {name} is not installed: {_MEND}"
    if _model_path() is None:
        return f"the package rapidocr here brings no model of a text detector: {_MEND}"
    return None


@functools.cache
def model_name() -> str | None:
    """The detector by name and content, None where there is none."""
    path = None if why_absent() else _model_path()
    if path is None:
        return None
    return f"{path.stem}-{hashlib.blake2b(path.read_bytes(), digest_size=6).hexdigest()}"


@functools.cache
def detector() -> TextDetector | None:
    """The one of this process, loaded when it is first needed; None where there is none."""
    path = None if why_absent() else _model_path()
    if path is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return TextDetector(session)


def _model_path() -> Path | None:
    spec = importlib.util.find_spec("rapidocr")
    for folder in (spec and spec.submodule_search_locations) or []:
        models = sorted(Path(folder).glob("models/*_det_*.onnx"))
        if models:
            return models[-1]
    return None
