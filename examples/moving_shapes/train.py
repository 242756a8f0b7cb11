"""A video model that learns moving shapes, and a rule on pixels that judges what it draws.

    python examples/moving_shapes/train.py --told captions
    python examples/moving_shapes/train.py --told classes --seconds 300

Squares, discs and triangles of four colours move left, right, up or down: 48 kinds, at any place.
The network is told what to draw by a caption ("a red disc moves up") or by the number of the kind.
Samples are drawn with classifier-free guidance; the judge knows nothing of the network.

With captions, 100 s of one core (1056 steps) gave the right colour in 0.75 of 200 samples, but
shapes no better than guessed and nothing that moves. No longer run is recorded.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from common import rng
from inference.guidance import guided
from inference.samplers import heun, karras_sigmas
from models.dit import DiT, DiTConfig
from models.initialize import initialize
from models.objectives.config import ObjectiveConfig
from models.objectives.loss import Denoiser, Objective, token_noise
from models.pack import PackLayout
from models.patch import grid_of, patchify, unpatchify
from models.text.hashed import HashedTextConfig, HashedTextEncoder
from training.config import OptimizerConfig
from training.ema import EMA
from training.optimizer import learning_rate, make_optimizer
from training.step import Prepared, add_gradients

COLOURS = {
    "red": (0.9, 0.1, 0.1),
    "green": (0.1, 0.8, 0.2),
    "blue": (0.2, 0.3, 1.0),
    "yellow": (0.9, 0.9, 0.1),
}
SHAPES = ("square", "disc", "triangle")
MOVES = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
KINDS = list(product(COLOURS, SHAPES, MOVES))

FRAMES, SIDE, SHAPE, SPEED = 4, 20, 9, 2
PATCH = (4, 4, 4)
# Of pixels in -1 .. 1 on the black background: brings the data to EDM's 0.5 or so.
SIGMA_DATA, FPS = 0.5, 8.0


def render(kind: tuple[str, str, str], place: tuple[float, float]) -> Tensor:
    """A video `[3, T, H, W]` in -1 .. 1; `place` in [0, 1) says where it begins, along and across
    its way."""
    colour, shape, move = kind
    step_y, step_x = MOVES[move]
    way = SPEED * (FRAMES - 1)
    along = int(place[0] * (SIDE - SHAPE - way + 1))
    across = int(place[1] * (SIDE - SHAPE + 1))
    forward = step_y + step_x > 0
    along = along if forward else SIDE - SHAPE - along
    top, left = (along, across) if step_y else (across, along)
    video = torch.full((3, FRAMES, SIDE, SIDE), -1.0)
    paint = torch.tensor(COLOURS[colour])[:, None] * 2 - 1
    mask = _mask(shape)
    for t in range(FRAMES):
        y, x = top + step_y * SPEED * t, left + step_x * SPEED * t
        video[:, t, y : y + SHAPE, x : x + SHAPE][:, mask] = paint
    return video


def _mask(shape: str) -> Tensor:
    y, x = torch.meshgrid(torch.arange(SHAPE), torch.arange(SHAPE), indexing="ij")
    middle = (SHAPE - 1) / 2
    if shape == "square":
        return torch.ones(SHAPE, SHAPE, dtype=torch.bool)
    if shape == "disc":
        return (y - middle) ** 2 + (x - middle) ** 2 <= (SHAPE / 2) ** 2
    return (x - middle).abs() <= (y + 1) / 2


def judge(video: Tensor) -> tuple[str, str, str]:
    """Colour, shape and move seen in a video `[3, T, H, W]`, from its pixels alone.

    Foreground is what is nearer to its brightest colour than to black; the shape is told by how
    much of its bounding box it fills, the move by its centre in the first and the last frame.
    """
    pixels = (video.clamp(-1, 1) + 1) / 2
    foreground = pixels.amax(0) > 0.45
    if not all(bool(frame.any()) for frame in foreground):
        return "nothing", "nothing", "nothing"
    mean = pixels[:, foreground].mean(1)
    colour = min(COLOURS, key=lambda c: float((mean - torch.tensor(COLOURS[c])).square().sum()))
    fills, centres = [], []
    for frame in foreground:
        rows, columns = frame.any(1).nonzero()[:, 0], frame.any(0).nonzero()[:, 0]
        box = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
        fills.append(float(frame.sum() / box))
        y, x = frame.nonzero().float().mean(0)
        centres.append((float(y), float(x)))
    fill = sum(fills) / len(fills)
    # A square fills 1, a disc 0.85, a triangle 0.60.
    shape = "square" if fill > 0.93 else "disc" if fill > 0.73 else "triangle"
    down, right = (b - a for a, b in zip(centres[0], centres[-1], strict=True))
    if max(abs(down), abs(right)) < SPEED * (FRAMES - 1) / 2:
        return colour, shape, "still"
    if abs(down) > abs(right):
        return colour, shape, "down" if down > 0 else "up"
    return colour, shape, "right" if right > 0 else "left"


@dataclass(kw_only=True)
class Settings:
    told: str = "captions"
    seconds: float = 500.0
    """Processor time for training."""
    steps: int = 3000
    """At most; the learning rate falls to zero over these or over the seconds, what ends first."""
    batch: int = 32
    hidden_size: int = 96
    num_layers: int = 4
    lr: float = 2e-3
    guidance_scale: float = 2.0
    num_samples: int = 200
    seed: int = 0
    kinds: int = len(KINDS)
    """Kinds that are learned, evenly taken out of all."""

    @property
    def chosen(self) -> list[int]:
        return [round(i * len(KINDS) / self.kinds) for i in range(self.kinds)]


class Toy:
    """A network, its objective, and the way it is told what to draw."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        classes = len(KINDS) if settings.told == "classes" else 0
        self.text = HashedTextEncoder(HashedTextConfig(dim=64))
        shape = DiTConfig(
            hidden_size=settings.hidden_size,
            num_layers=settings.num_layers,
            num_heads=settings.hidden_size // 32,
            patch=list(PATCH),
            num_classes=classes,
        )
        token_dim = 3 * PATCH[0] * PATCH[1] * PATCH[2]
        self.network = DiT(shape, token_dim=token_dim, text_dim=self.text.dim)
        initialize(self.network, settings.seed)
        self.token_dim = token_dim
        # What is where is decided at high noise.
        config = ObjectiveConfig(sigma_data=SIGMA_DATA, p_mean=-0.4, p_std=1.4)
        self.objective = Objective(config)

    def told(self, kinds: list[int | None]) -> tuple[Tensor, tuple[int, ...]]:
        """What the network is given for these kinds (None: nothing), and the tokens of each."""
        if self.settings.told == "classes":
            labels = [len(KINDS) if k is None else k for k in kinds]
            return torch.tensor(labels), (0,) * len(kinds)
        text, lens = self.text.encode(["" if k is None else caption(k) for k in kinds])
        return text, tuple(lens)

    def layout(self, lens_text: tuple[int, ...]) -> PackLayout:
        grid = grid_of((3, FRAMES, SIDE, SIDE), PATCH)
        n = len(lens_text)
        return PackLayout.build([grid] * n, lens_text, torch.full((n,), FPS))

    def batch(self, step: int) -> Prepared:
        """New videos of each step, one in ten of them untold."""
        settings, n = self.settings, self.settings.batch
        draw = rng.uniform(rng.key(settings.seed, "shapes", step=step), torch.arange(4 * n))
        which, along, across, untold = draw.view(4, n)
        kinds = [settings.chosen[int(u * settings.kinds)] for u in which]
        places = zip(along.tolist(), across.tolist(), strict=True)
        videos = [render(KINDS[k], place) for k, place in zip(kinds, places, strict=True)]
        clean = patchify([v * SIGMA_DATA for v in videos], PATCH)
        hidden = [None if u < 0.1 else k for k, u in zip(kinds, untold.tolist(), strict=True)]
        text, lens = self.told(hidden)
        return Prepared(clean, text, self.layout(lens), [f"{step}:{i}" for i in range(n)], None)

    def train(self, on_step: Callable[[int, float], None]) -> int:
        """Trains for the seconds or the steps; returns the steps. The averaged weights stay."""
        settings = self.settings
        schedule = OptimizerConfig(lr=settings.lr, warmup_steps=20, schedule="cosine")
        optimizer = make_optimizer(schedule, self.network)
        ema = EMA(self.network.named_parameters(), 0.995)
        parameters = dict(self.network.named_parameters())
        began, step = time.process_time(), 0
        while step < settings.steps:
            gone = (time.process_time() - began) / settings.seconds
            if gone >= 1:
                break
            done = max(gone, step / settings.steps)
            for group in optimizer.param_groups:
                warm = min(1.0, (step + 1) / schedule.warmup_steps)
                group["lr"] = warm * learning_rate(schedule, 20 + int(done * 980), 1000)
            optimizer.zero_grad()
            pack = self.batch(step)
            loss = add_gradients(
                self.network,
                self.objective,
                [pack],
                num_tokens=pack.clean.shape[0],
                seed=settings.seed,
                step=step,
                autocast=nullcontext(),
            )
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            optimizer.step()
            step += 1
            ema.update(parameters, step)
            on_step(step, loss)
        ema.copy_to(self.network)
        return step

    @torch.no_grad()
    def sample(self, kinds: list[int]) -> list[Tensor]:
        """A video `[3, T, H, W]` of each kind."""
        told: list[int | None] = [*kinds]
        text, lens = self.told(told)
        layout = self.layout(lens)
        ids = [str(i) for i in range(len(kinds))]
        keys = rng.keys(self.settings.seed, "sample", step=0, sample_ids=ids)
        noise = token_noise(keys, layout, self.token_dim)
        sigmas = karras_sigmas(18, 0.01, 20.0, 7.0)
        denoiser = Denoiser(self.network, self.objective.precondition)
        denoise = guided(
            denoiser,
            text,
            layout,
            self.settings.guidance_scale,
            null_label=len(KINDS) if self.settings.told == "classes" else None,
        )
        tokens = heun(denoise, noise * sigmas[0], sigmas)
        return unpatchify(tokens / SIGMA_DATA, layout.grids, PATCH)


def caption(kind: int) -> str:
    colour, shape, move = KINDS[kind]
    return f"a {colour} {shape} moves {move}"


def score(toy: Toy) -> dict[str, float]:
    """Shares of samples with the right colour, shape and move, and with all three."""
    settings = toy.settings
    kinds = [settings.chosen[i % settings.kinds] for i in range(settings.num_samples)]
    seen = [judge(v) for at in range(0, len(kinds), 50) for v in toy.sample(kinds[at : at + 50])]
    pairs = [(KINDS[k], s) for k, s in zip(kinds, seen, strict=True)]
    right = {
        name: sum(asked[i] == got[i] for asked, got in pairs) / len(pairs)
        for i, name in enumerate(("colour", "shape", "move"))
    }
    return {**right, "all": sum(asked == got for asked, got in pairs) / len(pairs)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--told", choices=["captions", "classes"], default="captions")
    parser.add_argument("--seconds", type=float, default=Settings.seconds)
    parser.add_argument("--samples", type=int, default=Settings.num_samples)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    toy = Toy(Settings(told=args.told, seconds=args.seconds, num_samples=args.samples))

    def report(step: int, loss: float) -> None:
        if step % 100 == 0:
            print(f"step {step}: loss {loss:.4f}", flush=True)

    began = time.process_time()
    steps = toy.train(report)
    trained = time.process_time() - began
    result = {"told": args.told, "steps": steps, "train_cpu_s": round(trained, 1), **score(toy)}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
