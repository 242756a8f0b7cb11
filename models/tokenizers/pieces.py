"""Videos in pieces: a few frames at a time, and tiles that see around themselves."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """A rectangle of latents, `(begin, end)` along (h, w): what it gives and what it sees."""

    gives: tuple[tuple[int, int], tuple[int, int]]
    sees: tuple[tuple[int, int], tuple[int, int]]

    def at(self, scale: int = 1) -> tuple[slice, slice, slice]:
        """Where in the whole it lies, as an index over (t, h, w)."""
        return _index(self.gives, scale)

    def seen(self, scale: int = 1) -> tuple[slice, slice, slice]:
        """What of the whole it needs."""
        return _index(self.sees, scale)

    def inside(self, scale: int = 1) -> tuple[slice, slice, slice]:
        """Where in what it sees that lies which it gives."""
        (top, bottom), (left, right) = self.gives
        (up, _), (west, _) = self.sees
        return _index(((top - up, bottom - up), (left - west, right - west)), scale)


def tiles(rows: int, columns: int, size: int, halo: int, grain: int) -> list[Tile]:
    """Tiles of at most `size` (rounded to `grain`) latents a side, seeing `halo` more around."""
    step = max(1, size // grain) * grain

    def spans(length: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        return [
            ((a, min(a + step, length)), (max(0, a - halo), min(a + step + halo, length)))
            for a in range(0, length, step)
        ]

    return [Tile((v[0], h[0]), (v[1], h[1])) for v in spans(rows) for h in spans(columns)]


def pieces(
    frames: Iterable[Tensor], temporal: int, spatial: int, latent_frames: int
) -> Iterator[Tensor]:
    """Frames `uint8 [n, H, W, 3]` as they come to pieces of `latent_frames` latent frames; the
    first has 1 frame for its first, all others `temporal` for each.

    Raises `ValueError` where they do not divide.
    """
    held: list[Tensor] = []
    wanted, total = 1 + temporal * (latent_frames - 1), 0
    for more in frames:
        _check(total + more.shape[0], more, spatial)
        while more.shape[0]:
            held.append(more[: wanted - sum(part.shape[0] for part in held)])
            more = more[held[-1].shape[0] :]
            total += held[-1].shape[0]
            if sum(part.shape[0] for part in held) == wanted:
                yield torch.cat(held)
                held, wanted = [], temporal * latent_frames
    if total == 0 or (total - 1) % temporal:
        raise ValueError(
            f"{total} frames cannot be tokenized: they must be 1 plus a multiple of {temporal}"
        )
    if held:
        yield torch.cat(held)


def latent_pieces(latents: Iterable[Tensor], latent_frames: int) -> Iterator[Tensor]:
    """Latents `[C, k, h, w]` as they come to pieces of at most `latent_frames`."""
    for more in latents:
        yield from more.split(latent_frames, dim=1)


def _check(total: int, frames: Tensor, spatial: int) -> None:
    _, height, width, _ = frames.shape
    if height % spatial or width % spatial:
        raise ValueError(
            f"{total} frames of {width}x{height} cannot be tokenized: sides must be multiples of "
            f"{spatial}"
        )


def _index(span: tuple[tuple[int, int], tuple[int, int]], scale: int) -> tuple[slice, slice, slice]:
    (top, bottom), (left, right) = span
    return (
        slice(None),
        slice(top * scale, bottom * scale),
        slice(left * scale, right * scale),
    )
