"""The stages of the engine's benchmark: they sleep as long as real ones would work."""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from curation.stage import Failure, Resources, Stage

NUM_CLIPS = 3
"""Per video, after scene detection."""


@dataclass(frozen=True, kw_only=True)
class Name:
    """A video or a clip, of which there is no more than its name."""

    content_id: str
    span: str = ""

    @property
    def label(self) -> str:
        return self.content_id + self.span


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a stage costs."""

    name: str
    mean_s: float
    on_gpu: bool
    load_s: float = 0.0
    skewed: bool = False
    """Lognormal with a coefficient of variation of 0.6; else uniform, 30% either way, or fixed."""
    fixed: bool = False


KINDS = (
    Kind(name="download", mean_s=0.05, on_gpu=False, fixed=True),
    Kind(name="scene", mean_s=0.4, on_gpu=False, skewed=True),
    Kind(name="transcode", mean_s=0.3, on_gpu=False),
    Kind(name="embed", mean_s=0.1, on_gpu=True, load_s=2.0, fixed=True),
    Kind(name="caption", mean_s=1.0, on_gpu=True, load_s=4.0),
)


def seconds(kind: Kind, label: str) -> float:
    """How long a stage takes for an item: the same in every run and for every subject."""
    chance = random.Random(f"{kind.name} {label}")
    if kind.fixed:
        return kind.mean_s
    if kind.skewed:
        sigma = math.sqrt(math.log(1 + 0.6**2))
        return kind.mean_s * math.exp(sigma * chance.gauss(0, 1) - sigma**2 / 2)
    return kind.mean_s * chance.uniform(0.7, 1.3)


def videos(count: int) -> list[Name]:
    return [Name(content_id=f"v{number:04d}") for number in range(count)]


def results(kind: Kind, item: Name) -> list[Name]:
    if kind.name != "scene":
        return [item]
    return [Name(content_id=item.content_id, span=f"/{k}") for k in range(NUM_CLIPS)]


def is_poisoned(label: str, share: float) -> bool:
    """Whether an item of the run with faults always fails."""
    return random.Random(f"poison {label}").random() < share


class Sleep(Stage[Name, Name]):
    """Takes as long as its kind; with a share of a GPU in proportion longer.

    Args:
        scale: of all times.
        poison: the share of clips that transcoding cannot read.
    """

    def __init__(self, kind: Kind, *, scale: float = 1.0, poison: float = 0.0) -> None:
        self.name = kind.name
        self.kind = kind
        self.scale = scale
        self.poison = poison
        self.setup_s = kind.load_s * scale
        self.resources = (
            Resources(cpus=0, gpus=1, min_gpus=0.1 if kind.fixed else None)
            if kind.on_gpu
            else Resources(cpus=1)
        )
        self._slowness = 1.0

    def params(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def setup(self) -> None:
        if self.kind.on_gpu:
            import ray

            share = ray.get_runtime_context().get_assigned_resources().get("GPU", 1.0)
            self._slowness = 1 / share
        time.sleep(self.kind.load_s * self.scale)

    def process(self, item: Name) -> Sequence[Name | Failure]:
        time.sleep(seconds(self.kind, item.label) * self.scale * self._slowness)
        if self.kind.name == "transcode" and is_poisoned(item.label, self.poison):
            raise RuntimeError("poisoned")
        return results(self.kind, item)
