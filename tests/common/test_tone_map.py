"""Tone mapping against the formulas of BT.2100, BT.2446 and BT.2087 written out. No video."""

import numpy as np
import pytest

from common.tone_map import grey_levels, tone_mapped

_M1, _M2 = 0.1593017578125, 78.84375
_C1, _C2, _C3 = 0.8359375, 18.8515625, 18.6875


def pq_of(nits: np.ndarray | float) -> np.ndarray:
    """SMPTE ST 2084, eq. 5.2: the other way round than the code has it."""
    power = (np.asarray(nits, np.float64) / 10000) ** _M1
    return ((_C1 + _C2 * power) / (1 + _C3 * power)) ** _M2


def hlg_of(scene: np.ndarray | float) -> np.ndarray:
    """BT.2100-2, table 5: OETF."""
    scene = np.asarray(scene, np.float64)
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    high = a * np.log(np.maximum(12 * scene - b, 1e-9)) + c
    return np.where(scene <= 1 / 12, np.sqrt(3 * scene), high)


def by_the_book(light: np.ndarray) -> np.ndarray:
    """`float64 [n, 3]` linear BT.2020 over 1000 cd/m2, to R'G'B' of BT.709, 0 to 255. The steps
    and names of BT.2446-1, section 4."""
    r, g, b = np.moveaxis(np.clip(light, 0, 1) ** (1 / 2.4), -1, 0)
    y = 0.2627 * r + 0.6780 * g + 0.0593 * b
    p_hdr = 1 + 32 * (1000 / 10000) ** (1 / 2.4)
    y_p = np.log(1 + (p_hdr - 1) * y) / np.log(p_hdr)
    y_c = np.where(y_p <= 0.7399, 1.0770 * y_p, 0.5000 * y_p + 0.5000)
    middle = (y_p > 0.7399) & (y_p < 0.9909)
    y_c = np.where(middle, -1.1510 * y_p**2 + 2.7811 * y_p - 0.6302, y_c)
    p_sdr = 1 + 32 * (100 / 10000) ** (1 / 2.4)
    y_sdr = (p_sdr**y_c - 1) / (p_sdr - 1)
    f = np.where(y > 0, y_sdr / (1.1 * np.maximum(y, 1e-12)), 0)
    cb = f * (b - y) / 1.8814
    cr = f * (r - y) / 1.4746
    y_tmo = y_sdr - np.maximum(0.1 * cr, 0)
    red, blue = y_tmo + 1.4746 * cr, y_tmo + 1.8814 * cb
    green = y_tmo - (0.2627 * 1.4746 * cr + 0.0593 * 1.8814 * cb) / 0.6780
    linear = np.maximum(np.stack([red, green, blue], -1), 0) ** 2.4
    matrix = [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]]
    return 255 * np.clip(linear @ np.array(matrix).T, 0, 1) ** (1 / 2.4)


def _lights() -> np.ndarray:
    """Linear colours of all kinds, dark ones among them, and greys."""
    random = np.random.default_rng(3)
    colours = random.random((4000, 3)) ** random.choice([0.5, 1.0, 3.0, 6.0], (4000, 1))
    greys = np.repeat(np.geomspace(1e-4, 1, 96)[:, None], 3, axis=1)
    return np.concatenate([colours, greys])


@pytest.mark.parametrize("transfer", ["PQ", "HLG"])
def test_every_colour_is_that_of_the_formulas(transfer: str) -> None:
    light = _lights()
    if transfer == "PQ":
        coded, shown = pq_of(1000 * light), light
    else:
        coded = hlg_of(light)
        scene = light @ [0.2627, 0.6780, 0.0593]
        shown = light * scene[:, None] ** 0.2
    got = tone_mapped(coded.astype(np.float32)[None], transfer)[0]
    apart = np.abs(got - by_the_book(shown))
    assert apart.max() < 2, "levels"
    assert apart.mean() < 0.4


def test_known_points() -> None:
    """White of the brightest master is white, black is black, and the white of paper (203 cd/m2 by
    BT.2408) lies at seven tenths of the range, as the report's curve puts it."""
    nits = np.array([0, 203, 1000, 4000])
    greys = np.repeat(pq_of(nits)[None, :, None], 3, axis=2).astype(np.float32)
    found = tone_mapped(greys, "PQ")[0]
    assert (np.ptp(found.astype(int), axis=1) <= 1).all(), "grey stays grey"
    assert found[:, 1].tolist() == [0, pytest.approx(175, abs=1), 255, 255]


@pytest.mark.parametrize("transfer", ["PQ", "HLG"])
def test_greys_rise(transfer: str) -> None:
    levels = grey_levels(transfer).astype(int)
    assert (levels[0], levels[-1], len(levels)) == (0, 255, 4096)
    assert (np.diff(levels) >= 0).all()
