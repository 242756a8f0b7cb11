"""A video model that learns moving shapes, and is judged by a rule on pixels.

    python -m examples.moving_shapes.train --told captions
    python -m examples.moving_shapes.train --told classes

Run it from the root of the source tree. See README.md beside it.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from common import rng
from examples.moving_shapes.shapes import FRAMES, KINDS, SIDE, judge, render
from inference.guidance import guided
from inference.samplers import heun, karras_sigmas
from models.dit import DiT, DiTConfig
from models.initialize import initialize
from models.objectives.config import ObjectiveConfig
from models.objectives.log_variance import LogVariance
from models.objectives.loss import Denoiser, Objective, token_noise
from models.pack import PackLayout
from models.patch import grid_of, patchify, unpatchify
from models.text.hashed import HashedTextConfig, HashedTextEncoder
from training.config import OptimizerConfig
from training.ema import EMA
from training.optimizer import learning_rate, make_optimizer
from training.step import Prepared, add_gradients

PATCH, FPS = (4, 4, 4), 8.0
TOKEN_DIM = 3 * PATCH[0] * PATCH[1] * PATCH[2]
SIGMA_DATA = 0.25
"""Of pixels from 0, black as the background, to 1: what is mostly 0 needs no part of a network."""


def objective_config() -> ObjectiveConfig:
    """What makes the toy learn fast.

    The network estimates the clean video, which has few dimensions; noise has as many as a token
    has features, more than the network is wide. Colour, shape and move are decided where noise is
    a few times the data, so more levels are drawn there; every level pulls alike.
    """
    return ObjectiveConfig(
        target="x0",
        weight="clean",
        sigma_data=SIGMA_DATA,
        p_mean=0.3,
        p_std=1.1,
        log_variance=True,
    )


@dataclass(kw_only=True)
class Settings:
    told: Literal["captions", "classes"] = "captions"
    kinds: list[int] = field(default_factory=lambda: list(range(len(KINDS))))
    """Which of `KINDS` are learned."""
    steps: int = 3000
    batch: int = 24
    hidden_size: int = 128
    num_layers: int = 4
    lr: float = 4e-3
    ema_decay: float = 0.995
    untold: float = 0.1
    """Share of training videos of which the network is told nothing, for guidance."""
    guidance_scale: float = 3.0
    sampler_steps: int = 18
    seed: int = 0
    objective: ObjectiveConfig = field(default_factory=objective_config)


class Toy:
    """A network, its objective, and the way it is told what to draw."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.text = HashedTextEncoder(HashedTextConfig(dim=64))
        shape = DiTConfig(
            hidden_size=settings.hidden_size,
            num_layers=settings.num_layers,
            num_heads=settings.hidden_size // 32,
            patch=list(PATCH),
            num_classes=len(KINDS) if settings.told == "classes" else 0,
        )
        self.network = DiT(shape, token_dim=TOKEN_DIM, text_dim=self.text.dim)
        if settings.objective.log_variance:
            self.network.log_variance = LogVariance()
        initialize(self.network, settings.seed)
        self.objective = Objective(settings.objective)
        self.ema = EMA(self.network.named_parameters(), settings.ema_decay)

    def told(self, kinds: Sequence[int | None]) -> tuple[Tensor, tuple[int, ...]]:
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
        """New videos of each step."""
        settings, n = self.settings, self.settings.batch
        draw = rng.uniform(rng.key(settings.seed, "shapes", step=step), torch.arange(4 * n))
        which, along, across, hide = draw.view(4, n)
        kinds = [settings.kinds[int(u * len(settings.kinds))] for u in which]
        videos = render(kinds, torch.stack([along, across], dim=1))
        clean = patchify(list((videos + 1) / 2), PATCH)
        hidden = hide < settings.untold
        text, lens = self.told(
            [None if h else k for k, h in zip(kinds, hidden.tolist(), strict=True)]
        )
        return Prepared(clean, text, self.layout(lens), [f"{step}:{i}" for i in range(n)], None)

    def train(self, on_step: Callable[[int, float], None] = lambda step, loss: None) -> None:
        """Trains all steps; the averaged weights stay."""
        settings = self.settings
        schedule = OptimizerConfig(lr=settings.lr, warmup_steps=50, schedule="cosine")
        optimizer = make_optimizer(schedule, self.network)
        parameters = dict(self.network.named_parameters())
        for step in range(settings.steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(schedule, step, settings.steps)
            optimizer.zero_grad()
            pack = self.batch(step)
            loss = add_gradients(
                self.network,
                self.objective,
                [pack],
                num_tokens=pack.layout.num_tokens,
                seed=settings.seed,
                step=step,
                autocast=nullcontext(),
            )
            torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
            optimizer.step()
            self.ema.update(parameters, step + 1)
            on_step(step + 1, loss)
        self.ema.copy_to(self.network)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights, for as long as it lasts."""
        weights = {name: p.detach().clone() for name, p in self.network.named_parameters()}
        self.ema.copy_to(self.network)
        yield
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(weights[name])

    @torch.no_grad()
    def sample(self, kinds: Sequence[int], seed: int = 0) -> Tensor:
        """A video of each kind: `[n, 3, T, H, W]`."""
        settings = self.settings
        text, lens = self.told(kinds)
        layout = self.layout(lens)
        ids = [str(i) for i in range(len(kinds))]
        noise = token_noise(rng.keys(seed, "sample", step=0, sample_ids=ids), layout, TOKEN_DIM)
        sigmas = karras_sigmas(settings.sampler_steps, 0.02, 40.0, 7.0)
        denoise = guided(
            Denoiser(self.network, self.objective.precondition),
            text,
            layout,
            settings.guidance_scale,
            null_label=len(KINDS) if settings.told == "classes" else None,
        )
        tokens = heun(denoise, noise * sigmas[0], sigmas)
        return torch.stack(unpatchify(tokens * 2 - 1, layout.grids, PATCH))


def caption(kind: int) -> str:
    colour, shape, move = KINDS[kind]
    return f"a {colour} {shape} moves {move}"


def score(toy: Toy, samples: int, seed: int = 0) -> dict[str, float]:
    """Shares of samples with the right colour, shape and move, and with all three."""
    asked = [toy.settings.kinds[i % len(toy.settings.kinds)] for i in range(samples)]
    seen = judge(toy.sample(asked, seed))
    pairs = [(KINDS[k], s) for k, s in zip(asked, seen, strict=True)]
    right = {
        name: sum(kind[i] == got[i] for kind, got in pairs) / samples
        for i, name in enumerate(("colour", "shape", "move"))
    }
    return {**right, "all": sum(kind == got for kind, got in pairs) / samples}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--told", choices=["captions", "classes"], default="captions")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--samples", type=int, default=200, help="that are judged at the end")
    parser.add_argument("--seed", type=int, default=0, help="of weights, videos and noise")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    toy = Toy(Settings(told=args.told, steps=args.steps, seed=args.seed))
    clock = Clock()

    def report(step: int, loss: float) -> None:
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.4f}", file=sys.stderr, flush=True)
        if step % (args.steps // 4) == 0 and step < args.steps:
            with clock.stopped(), toy.averaged():
                say(step, clock.cpu_s, score(toy, 96, seed=1))

    def say(step: int, cpu_s: float, right: dict[str, float]) -> None:
        told = {"told": args.told, "step": step, "train_cpu_s": round(cpu_s, 1)}
        print(json.dumps({**told, **right}), flush=True)

    toy.train(report)
    say(args.steps, clock.cpu_s, score(toy, args.samples))
    return 0


class Clock:
    """Processor time that goes by outside `stopped`."""

    def __init__(self) -> None:
        self.begin = time.process_time()

    @property
    def cpu_s(self) -> float:
        return time.process_time() - self.begin

    @contextmanager
    def stopped(self) -> Iterator[None]:
        at = time.process_time()
        yield
        self.begin += time.process_time() - at


if __name__ == "__main__":
    sys.exit(main())
