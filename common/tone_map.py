"""High dynamic range to standard: pictures of Rec. ITU-R BT.2100 (PQ, HLG) as BT.709 shows them.

The curve is Method A of Report ITU-R BT.2446-1, section 4: it is made for masters of 1000 cd/m2 on
screens of 100 cd/m2, needs nothing but the picture itself, and keeps hues. Then the colours of
BT.2020 go to BT.709 in linear light (BT.2087-0) and what lies outside is cut.
"""

import functools

import cv2
import numpy as np

HDR = {16: "PQ", 18: "HLG"}
"""Transfer characteristics of high dynamic range, by `AVColorTransferCharacteristic`."""
RED, BLUE = 0.2627, 0.0593
"""Weights in the brightness of BT.2020; green has the rest."""
PEAK_NITS, SCREEN_NITS = 1000.0, 100.0
_GAMMA = 2.4
_CODES = 4096
_WEIGHTS = np.array([[RED, 1 - RED - BLUE, BLUE]])
# BT.2087-0, section 3: linear BT.2020 to BT.709.
_TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]]
)


def tone_mapped(coded: np.ndarray, transfer: str) -> np.ndarray:
    """`uint8 [H, W, 3]`, R'G'B' of BT.709 and full range, for a screen by BT.1886.

    Args:
        coded: `float32 [H, W, 3]`, R'G'B' of BT.2100, 0 to 1.
        transfer: `PQ` or `HLG`.
    """
    codes = np.clip(coded * np.float32(_CODES - 1) + np.float32(0.5), 0, _CODES - 1)
    gamma = _gamma_of(transfer)[codes.astype(np.uint16)]
    if transfer == "HLG":
        # The OOTF multiplies by Ys ** (1.2 - 1) in linear light (BT.2100-2, table 5).
        scene = cv2.transform(cv2.pow(gamma, _GAMMA), _WEIGHTS)
        gamma *= cv2.pow(scene, 0.2 / _GAMMA)[..., None]
    bright = cv2.transform(gamma, _WEIGHTS)
    gain = _gains()[(bright * np.float32(_CODES - 1) + np.float32(0.5)).astype(np.uint16)]
    # Of BT.2446-1, eq. (4) to (6): R' - Y' is 1.4746 Cr', and Y' gives up a tenth of it.
    red = np.maximum(gamma[..., 0] - bright, 0) * np.float32(0.1 / 1.4746)
    lift = gain * (np.float32(0.1) * bright - red)
    linear = cv2.pow(np.maximum(gamma * gain[..., None] + lift[..., None], 0), _GAMMA)
    shown = np.clip(cv2.transform(linear, _TO_BT709), 0, 1)
    return np.round(cv2.pow(shown, 1 / _GAMMA) * np.float32(255)).astype(np.uint8)


@functools.cache
def grey_levels(transfer: str) -> np.ndarray:
    """`uint8 [4096]`: what a grey of a code, of full range, becomes."""
    codes = np.arange(_CODES, dtype=np.float32) / (_CODES - 1)
    return tone_mapped(np.repeat(codes[None, :, None], 3, axis=2), transfer)[0, :, 1].copy()


@functools.cache
def _gamma_of(transfer: str) -> np.ndarray:
    """`float32 [4096]`: light by code, 1 being `PEAK_NITS`, to the power of 1 / 2.4: of the screen
    for PQ (BT.2100-2, table 4), of the scene for HLG (table 5)."""
    code = np.arange(_CODES) / (_CODES - 1)
    if transfer == "PQ":
        m1, m2 = 2610 / 16384, 2523 / 4096 * 128
        c1, c2, c3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
        root = code ** (1 / m2)
        light = (np.maximum(root - c1, 0) / (c2 - c3 * root)) ** (1 / m1) * 10000 / PEAK_NITS
    else:
        a, b = 0.17883277, 1 - 4 * 0.17883277
        c = 0.5 - a * np.log(4 * a)
        light = np.where(code <= 0.5, code**2 / 3, (np.exp((code - c) / a) + b) / 12)
    return (np.clip(light, 0, 1) ** (1 / _GAMMA)).astype(np.float32)


@functools.cache
def _gains() -> np.ndarray:
    """`float32 [4096]`: by the brightness Y' before, what it becomes over 1.1 times itself."""
    before = np.arange(_CODES) / (_CODES - 1)
    before[0] = before[1] / 100  # the limit
    dense, thin = (1 + 32 * (nits / 10000) ** (1 / _GAMMA) for nits in (PEAK_NITS, SCREEN_NITS))
    even = np.log(1 + (dense - 1) * before) / np.log(dense)
    bent = np.select(
        [even <= 0.7399, even < 0.9909],
        [1.0770 * even, -1.1510 * even**2 + 2.7811 * even - 0.6302],
        0.5 * even + 0.5,
    )
    return ((thin**bent - 1) / (thin - 1) / (1.1 * before)).astype(np.float32)
