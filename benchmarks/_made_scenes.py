"""Scenes rendered from a seed, each a function of time: noise, clouds that pass through each other,
gradients, shapes, stripes and pages of letters, under a moving camera and moving things."""

from collections.abc import Callable

import cv2
import numpy as np

LENGTH_S = 8.0
"""Of a scene, so that cameras stay on their canvas."""
_CANVAS = (1600, 1200)
_SIZE = (960, 720)
"""Width and height of what the camera sees."""
Source = Callable[[float], np.ndarray]


def scene(seed: int) -> Source:
    """Seconds to the picture shown then, `uint8 [H, W, 3]`; equal seeds give equal scenes."""
    random = np.random.default_rng([seed, 7])
    canvas = _KINDS[random.integers(len(_KINDS))](random)
    other = _noise(random) if random.random() < 0.2 else None
    course = random.uniform(-25, 25, 2)
    sway, sway_per_s = random.uniform(0, 20, 2), random.uniform(0.3, 3.0, 2)
    turn_deg, turn_per_s = random.uniform(-10, 10), random.uniform(-1.5, 1.5)
    zoom, growth = random.uniform(1.0, 1.3), random.uniform(-0.02, 0.02)
    things = [_thing(random) for _ in range(random.integers(0, 6))]

    def at(t: float) -> np.ndarray:
        middle = np.array(_CANVAS) / 2 + course * (t - LENGTH_S / 2)
        middle = middle + sway * np.sin(sway_per_s * t)
        scale = zoom * np.exp(growth * (t - LENGTH_S / 2))
        picture = _seen(canvas, middle, turn_deg + turn_per_s * t, scale)
        if other is not None:
            drift = np.array(_CANVAS) / 2 - 1.5 * course * (t - LENGTH_S / 2)
            picture = np.maximum(picture, _seen(other, drift, 0.0, 1.0))
        for draw in things:
            draw(picture, t)
        return picture

    return at


def _seen(canvas: np.ndarray, middle: np.ndarray, turn_deg: float, scale: float) -> np.ndarray:
    matrix = cv2.getRotationMatrix2D((float(middle[0]), float(middle[1])), turn_deg, scale)
    matrix[:, 2] += np.array(_SIZE) / 2 - middle
    return cv2.warpAffine(canvas, matrix, _SIZE, borderMode=cv2.BORDER_REFLECT)


def _thing(random: np.random.Generator) -> Callable[[np.ndarray, float], None]:
    """A disc or a box on its way to and fro."""
    colour = tuple(int(c) for c in random.integers(0, 256, 3))
    radius, round_ = int(random.integers(15, 110)), random.random() < 0.5
    start, speed = random.uniform(0, 1, 2), random.uniform(-0.4, 0.4, 2)

    def draw(picture: np.ndarray, t: float) -> None:
        place = np.abs((start + speed * t) % 2 - 1)
        x, y = (int(p * side) for p, side in zip(place, _SIZE, strict=True))
        if round_:
            cv2.circle(picture, (x, y), radius, colour, -1, cv2.LINE_AA)
        else:
            cv2.rectangle(picture, (x - radius, y - radius // 2), (x + radius, y), colour, -1)

    return draw


def _colours(random: np.random.Generator, num: int) -> np.ndarray:
    return random.uniform(10, 245, (num, 3)).astype(np.float32)


def _between(share: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """`uint8 [H, W, 3]` of two colours, by a share of 0 to 1."""
    one, two = _colours(random, 2)
    return (one + (two - one) * np.clip(share, 0, 1)[..., None]).astype(np.uint8)


def _noise(random: np.random.Generator) -> np.ndarray:
    width, height = _CANVAS
    steps = random.choice([8, 16, 32, 64, 128, 256], 3, replace=False)
    share = np.full((height, width), 0.5, np.float32)
    for step in steps:
        grid = random.normal(0, 0.16, (height // step + 2, width // step + 2))
        share += cv2.resize(grid.astype(np.float32), _CANVAS, interpolation=cv2.INTER_CUBIC)
    return _between(share, random)


def _gradient(random: np.random.Generator) -> np.ndarray:
    x, y = np.meshgrid(np.linspace(0, 1, _CANVAS[0]), np.linspace(0, 1, _CANVAS[1]))
    angle = random.uniform(0, 2 * np.pi)
    return _between(0.5 + (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle), random)


def _stripes(random: np.random.Generator) -> np.ndarray:
    x, y = np.meshgrid(np.arange(_CANVAS[0]), np.arange(_CANVAS[1]))
    share = np.full(x.shape, 0.5)
    for _ in range(2):
        angle, length_px = random.uniform(0, np.pi), random.uniform(20, 300)
        wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / length_px)
        share += 0.25 * wave
    return _between(share, random)


def _shapes(random: np.random.Generator) -> np.ndarray:
    canvas = _gradient(random)
    for _ in range(random.integers(15, 120)):
        colour = tuple(int(c) for c in random.integers(0, 256, 3))
        x, y = (int(random.integers(0, side)) for side in _CANVAS)
        width, height = (int(n) for n in random.integers(10, 200, 2))
        if random.random() < 0.5:
            cv2.rectangle(canvas, (x, y), (x + width, y + height), colour, -1)
        else:
            turn = float(random.uniform(0, 180))
            cv2.ellipse(canvas, (x, y), (width, height // 2), turn, 0, 360, colour, -1, cv2.LINE_AA)
    return canvas


def _letters(random: np.random.Generator) -> np.ndarray:
    canvas = _between(np.zeros(_CANVAS[::-1], np.float32), random)
    ink = tuple(int(c) for c in 255 - canvas[0, 0])
    size = float(random.uniform(0.7, 3.0))
    for y in range(0, _CANVAS[1], round(45 * size)):
        line = "".join(chr(c) if c < 123 else " " for c in random.integers(97, 129, 120))
        cv2.putText(canvas, line, (0, y), cv2.FONT_HERSHEY_DUPLEX, size, ink, 2, cv2.LINE_AA)
    return canvas


_KINDS = (_noise, _noise, _gradient, _stripes, _shapes, _shapes, _letters)
