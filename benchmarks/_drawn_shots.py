"""Videos put together from shots by a seed: cuts, cross-fades, fades through black and white, and
what is easily taken for them (flashes, whip pans, shake, zooms, drifts of exposure, dusk)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

RATES = (Fraction(24000, 1001), Fraction(25), Fraction(30000, 1001), Fraction(50), Fraction(60))
SIZES = ((640, 360), (480, 360), (360, 640), (852, 362))
KINDS = ("cut", "cross", "cross", "black")
"""How a shot may end; `white` is another."""
TROUBLES = ("none", "none", "none", "flash", "pan", "shake", "drift")
"""What may happen in a shot; `zoom` and `dusk` are others."""
_WHITE = -1
"""Stands for the number of a shot."""
Part = tuple[int, int, float]
"""(number of a shot, its frame, weight)"""
Source = Callable[[float], np.ndarray]
"""Seconds to the picture shown then, `uint8 [H, W, 3]`."""


@dataclass(kw_only=True)
class Drawn:
    """A plan of one video."""

    rate: Fraction
    size: tuple[int, int]
    crf: int
    shots: list["Shot"] = field(default_factory=list)
    frames: list[list[Part]] = field(default_factory=list)
    """What each frame is the sum of; what is missing to 1 is black."""
    cuts_s: list[float] = field(default_factory=list)
    fades_s: list[tuple[float, float]] = field(default_factory=list)


@dataclass(kw_only=True)
class Shot:
    source: int
    begin_s: float
    num_frames: int
    trouble: str
    seed: int


def draw(
    seed: int,
    lengths_s: Sequence[float],
    *,
    num_shots: int = 8,
    kinds: Sequence[str] = KINDS,
    troubles: Sequence[str] = TROUBLES,
) -> Drawn:
    """A plan over sources of these lengths; equal seeds give equal plans."""
    random = np.random.default_rng(seed)
    rate = RATES[random.integers(len(RATES))]
    drawn = Drawn(
        rate=rate, size=SIZES[random.integers(len(SIZES))], crf=int(random.integers(18, 30))
    )
    order = random.permutation(len(lengths_s))[:num_shots].tolist()
    entering, kind = 0, "start"
    for number, source in enumerate(order):
        last = number == len(order) - 1
        leaving_kind = "end" if last else str(random.choice(kinds))
        fade_s = 0.0
        if leaving_kind in ("cross", "black", "white"):
            fade_s = min(random.uniform(0.3, 2.0), 0.4 * lengths_s[source])
        leaving = round(fade_s * float(rate) / (1 if leaving_kind == "cross" else 2))
        steady = round(random.uniform(1.0, 3.0) * float(rate))
        most = int(lengths_s[source] * float(rate)) - 1
        num_frames = min(entering + steady + leaving, most)
        entering, leaving = min(entering, num_frames // 3), min(leaving, num_frames // 3)
        begin_s = random.uniform(0, lengths_s[source] - num_frames / float(rate))
        trouble = str(random.choice(troubles))
        drawn.shots.append(
            Shot(
                source=source,
                begin_s=begin_s,
                num_frames=num_frames,
                trouble=trouble,
                seed=int(random.integers(2**31)),
            )
        )
        _append(drawn, number, kind, entering, random)
        kind, entering = leaving_kind, leaving if leaving_kind != "cut" else 0
    return drawn


def _append(
    drawn: Drawn, number: int, kind: str, overlap: int, random: np.random.Generator
) -> None:
    """Adds a shot whose first `overlap` frames meet the last ones there are."""
    frames, at = drawn.frames, len(drawn.frames)
    rise = [(n + 1) / (overlap + 1) for n in range(overlap)]
    entering = [[(number, n, weight)] for n, weight in enumerate(rise)]
    if kind == "cross":
        for n, part in enumerate(entering):
            frames[at - overlap + n] = [
                *((s, f, w * (1 - rise[n])) for s, f, w in frames[at - overlap + n]),
                *part,
            ]
        drawn.fades_s.append(_span(drawn, at - overlap, at))
    elif kind in ("black", "white"):
        level = 1.0 if kind == "white" else 0.0
        for n, weight in enumerate(rise):
            held = [(s, f, w * (1 - weight)) for s, f, w in frames[at - overlap + n]]
            frames[at - overlap + n] = [*held, (_WHITE, 0, level * weight)]
        num_plain = int(random.uniform(0, 0.4) * float(drawn.rate))
        frames += [[(_WHITE, 0, level)] for _ in range(num_plain)]
        frames += [[*part, (_WHITE, 0, level * (1 - rise[n]))] for n, part in enumerate(entering)]
        drawn.fades_s.append(_span(drawn, at - overlap, len(frames)))
    elif kind == "cut":
        drawn.cuts_s.append(float(at / drawn.rate))
    frames += [[(number, n, 1.0)] for n in range(overlap, drawn.shots[number].num_frames)]


def _span(drawn: Drawn, first: int, past: int) -> tuple[float, float]:
    return float(first / drawn.rate), float(past / drawn.rate)


def pictures(drawn: Drawn, sources: Mapping[int, Source]) -> Iterator[np.ndarray]:
    """The frames as `uint8 [H, W, 3]`."""
    width, height = drawn.size
    for parts in drawn.frames:
        total = np.zeros((height, width, 3), np.float32)
        for number, frame, weight in parts:
            if number == _WHITE:
                total += weight * 255
                continue
            shot = drawn.shots[number]
            at_s = shot.begin_s + frame / float(drawn.rate)
            picture = sources[shot.source](at_s)
            total += weight * _troubled(shot, frame, picture, drawn)
        yield np.clip(np.round(total), 0, 255).astype(np.uint8)


def _troubled(shot: Shot, frame: int, picture: np.ndarray, drawn: Drawn) -> np.ndarray:
    random = np.random.default_rng(shot.seed)
    (width, height), fps = drawn.size, float(drawn.rate)
    moves = shot.trouble in ("pan", "shake")
    zoom = 1.25 if moves else 1.0
    large = cv2.resize(
        picture, (round(width * zoom), round(height * zoom)), interpolation=cv2.INTER_AREA
    )
    room = np.array([large.shape[1] - width, large.shape[0] - height])
    offset = room / 2
    middle, lasts = random.uniform(0.3, 0.7) * shot.num_frames, random.uniform(0.2, 1.0) * fps
    done = 1 / (1 + np.exp(-(frame - middle) / (lasts / 6)))
    if shot.trouble == "pan":
        offset = np.array([done * room[0], room[1] / 2])
    elif shot.trouble == "shake":
        far = random.uniform(0.005, 0.03) * np.hypot(width, height)
        step = np.random.default_rng([shot.seed, frame]).normal(0, far, 2)
        offset = np.clip(offset + step, 0, room)
    x, y = offset.astype(int)
    seen = large[y : y + height, x : x + width].astype(np.float32)
    if shot.trouble == "flash":
        begin, length = random.integers(shot.num_frames), random.integers(1, 4)
        if begin <= frame < begin + length:
            strength = random.uniform(0.5, 1.0)
            seen = seen * (1 - strength) + 255 * strength
    elif shot.trouble == "zoom":
        closer = 1 + done * random.uniform(0.3, 1.0)
        centre = (width / 2, height / 2)
        seen = cv2.warpAffine(seen, cv2.getRotationMatrix2D(centre, 0, closer), (width, height))
    elif shot.trouble == "dusk":
        seen = seen * (1 - random.uniform(0.5, 0.85) * frame / shot.num_frames)
    elif shot.trouble == "drift":
        low, high = random.uniform(0.4, 1.6, 2)
        seen = np.clip(seen * (low + (high - low) * done), 0, 255)
    return seen


def write(path: Path, drawn: Drawn, sources: Mapping[int, Source]) -> None:
    """As H.264 of the plan's quality."""
    with av.open(str(path), "w") as container:
        options = {"crf": str(drawn.crf), "preset": "veryfast"}
        stream = container.add_stream("libx264", rate=drawn.rate, options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = *drawn.size, "yuv420p"
        for picture in pictures(drawn, sources):
            frame = VideoFrame.from_ndarray(picture, "rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
