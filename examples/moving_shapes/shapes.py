"""Videos of a moving shape, and a rule on pixels that says what a video shows.

Squares, discs and triangles of four colours move left, right, up or down over black: 48 kinds. The
place is drawn at random, along the way and across it.

Legend: n videos, T frames, H and W pixels.
"""

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

COLOURS = {
    "red": (0.9, 0.1, 0.1),
    "green": (0.1, 0.8, 0.2),
    "blue": (0.2, 0.3, 1.0),
    "yellow": (0.9, 0.9, 0.1),
}
SHAPES = ("square", "disc", "triangle")
MOVES = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
FRAMES, SIDE, SHAPE, SPEED, LATTICE = 4, 16, 8, 2, 2
"""Frames; in pixels: a frame's side, a shape's, the way between frames, and between the places
where a shape can begin."""
WAY = SPEED * (FRAMES - 1)


class Kind(NamedTuple):
    colour: str
    shape: str
    move: str


KINDS = [Kind(*parts) for parts in product(COLOURS, SHAPES, MOVES)]

LIT = 0.45
"""A pixel belongs to the shape where its brightest channel, 0 to 1, is above."""
MOST_WRONG = 5.0
"""Pixels a frame, on average, that may differ from the nearest shape; two shapes differ by 12."""
MOST_OFF = 0.3
"""How far the mean colour may lie from the nearest of the four, 0 to 1 a channel."""


def render(kinds: list[int], places: Tensor) -> Tensor:
    """Videos `float32 [n, 3, T, H, W]` in -1 .. 1 of `KINDS[kind]`.

    Args:
        places: `[n, 2]` in [0, 1), along the way and across it.
    """
    steps = torch.tensor([MOVES[KINDS[k].move] for k in kinds])
    along, across = (
        (place * ((SIDE - SHAPE - way) // LATTICE + 1)).long() * LATTICE
        for place, way in ((places[:, 0], WAY), (places[:, 1], 0))
    )
    along = torch.where(steps.sum(1) > 0, along, SIDE - SHAPE - along)
    vertical = steps[:, 0] != 0
    start = torch.stack(
        [torch.where(vertical, along, across), torch.where(vertical, across, along)], dim=1
    )
    corner = start[:, None] + steps[:, None] * SPEED * torch.arange(FRAMES)[:, None]
    inside = torch.arange(SIDE) - corner[..., None]
    y, x = inside[:, :, 0, :, None], inside[:, :, 1, None, :]
    which = torch.tensor([SHAPES.index(KINDS[k].shape) for k in kinds])[:, None, None, None]
    there = (y >= 0) & (y < SHAPE) & (x >= 0) & (x < SHAPE)
    lit = there & _masks()[which, y.clamp(0, SHAPE - 1), x.clamp(0, SHAPE - 1)]
    paint = torch.tensor([COLOURS[KINDS[k].colour] for k in kinds])
    return lit[:, None] * paint[:, :, None, None, None] * 2 - 1


def _masks() -> Tensor:
    """`bool [3, SHAPE, SHAPE]`, in the order of `SHAPES`."""
    y, x = torch.meshgrid(torch.arange(SHAPE), torch.arange(SHAPE), indexing="ij")
    middle = (SHAPE - 1) / 2
    square = torch.ones(SHAPE, SHAPE, dtype=torch.bool)
    disc = (y - middle) ** 2 + (x - middle) ** 2 <= (SHAPE / 2) ** 2
    triangle = (x - middle).abs() <= (y + 1) / 2
    return torch.stack([square, disc, triangle])


def _templates() -> Tensor:
    """Every shape at every place: `float32 [3, places, H * W]`, places by row and column."""
    free = SIDE - SHAPE + 1
    made = torch.zeros(len(SHAPES), free, free, SIDE, SIDE)
    for y, x in product(range(free), range(free)):
        made[:, y, x, y : y + SHAPE, x : x + SHAPE] = _masks().float()
    return made.flatten(3).flatten(1, 2)


def judge(videos: Tensor) -> list[Kind]:
    """What videos `[n, 3, T, H, W]` show, from their pixels alone; "none" where it is unclear.

    A frame's lit pixels are held against every shape at every place. The shape is the one that
    leaves fewest pixels unexplained over all frames, and its places are the way that it went: it
    must go on in one direction from frame to frame. The colour is the nearest to the mean of the
    lit pixels.
    """
    pixels = (videos.clamp(-1, 1) + 1) / 2
    lit = (pixels.amax(1) > LIT).float()
    seen, templates = lit.flatten(2)[:, :, None], _templates()
    both = torch.einsum("ntxp,skp->ntsk", seen, templates)
    wrong = seen.sum(-1)[..., None] + templates.sum(-1) - 2 * both
    least, place = wrong.min(-1)
    per_shape = least.mean(1)
    found = []
    for i in range(len(videos)):
        shape = int(per_shape[i].argmin())
        clear = bool(per_shape[i, shape] <= MOST_WRONG)
        colour = _colour(pixels[i][:, lit[i] > 0])
        way = place[i, :, shape]
        corners = torch.stack([way // (SIDE - SHAPE + 1), way % (SIDE - SHAPE + 1)], dim=1)
        move = _move(corners) if clear else "none"
        found.append(Kind(colour, SHAPES[shape] if clear else "none", move))
    return found


def _colour(lit: Tensor) -> str:
    """The nearest colour to pixels `[3, lit]`."""
    if not lit.shape[1]:
        return "none"
    mean = lit.mean(1)
    off = {name: float((mean - torch.tensor(c)).norm()) for name, c in COLOURS.items()}
    nearest = min(off, key=lambda name: off[name])
    return nearest if off[nearest] <= MOST_OFF else "none"


def _move(corners: Tensor) -> str:
    """The direction of a way `[T, 2]` of rows and columns."""
    steps = corners.diff(dim=0)
    for name, direction in MOVES.items():
        ahead = steps @ torch.tensor(direction)
        aside = (steps[:, 1] if direction[0] else steps[:, 0]).abs()
        if bool((ahead > 0).all()) and int(aside.sum()) < int(ahead.sum()) / 2:
            return name
    return "none"
