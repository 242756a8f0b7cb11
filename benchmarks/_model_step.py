"""A training step of a block or a network: its time and its memory."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._clock import clock
from benchmarks.row import Row
from models.encoding import choose_device


@dataclass
class Subject:
    name: str
    clear: Callable[[], None]
    """Of what an earlier step left."""
    forward: Callable[[], Tensor]
    step: Callable[[], None]
    """Clears, then forward and backward."""
    held: set[int]
    """Addresses of the weights and the input."""


def make_subject(
    name: str, block: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor
) -> Subject:
    def clear() -> None:
        for leaf in (x, *block.parameters()):
            leaf.grad = None

    def step() -> None:
        clear()
        forward(x).backward(torch.ones_like(x))

    held = {leaf.untyped_storage().data_ptr() for leaf in (x, *block.parameters())}
    return Subject(name, clear, lambda: forward(x), step, held)


def row_of(case: str, subject: str, metric: str, value: float | None, unit: str) -> Row:
    return Row(benchmark="model", case=case, subject=subject, metric=metric, value=value, unit=unit)


def compared(case: str, subjects: list[Subject] | str, rounds: int, tokens: int) -> Iterator[Row]:
    """Rows of each subject over `rounds` in turn, `tokens` a step; the first is what ratios are of.

    `subjects` is a reason instead where they cannot be run.
    """
    if isinstance(subjects, str):
        yield row_of(case, "diffusers", "time", None, subjects)
        return
    times: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for subject in subjects:
        subject.step()
    for i in range(rounds):
        for subject in subjects if i % 2 == 0 else subjects[::-1]:
            times[subject.name].append(clock(subject.step, choose_device("auto")))
    kept = {s.name: kept_bytes(s) for s in subjects}
    peaks = {s.name: peak_bytes(s) for s in subjects}
    base = subjects[0].name
    for subject in subjects:
        name, seconds = subject.name, times[subject.name]
        median = statistics.median(seconds)
        low, *_, high = statistics.quantiles(seconds, n=10) if len(seconds) > 1 else seconds * 2
        yield row_of(case, name, "time", median * 1e3, "ms")
        yield row_of(case, name, "spread", (high - low) * 1e3, "ms")
        yield row_of(case, name, "rate", tokens / median, "tokens/s")
        yield row_of(case, name, "kept", kept[name] / 2**20, "MiB")
        yield row_of(case, name, "peak", peaks[name] / 2**20, "MiB")
        # Of each round, so that what the machine did meanwhile weighs on both sides alike.
        ratio = statistics.median(a / b for a, b in zip(seconds, times[base], strict=True))
        yield row_of(case, name, "time ratio", ratio, "1")
        yield row_of(case, name, "kept ratio", kept[name] / kept[base], "1")
        yield row_of(case, name, "peak ratio", peaks[name] / peaks[base], "1")


def kept_bytes(subject: Subject) -> int:
    """Bytes of distinct memory that a forward keeps for its backward, beyond weights and input."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = subject.forward()
    del out
    return sum(size for address, size in kept.items() if address not in subject.held)


def peak_bytes(subject: Subject) -> int:
    """Most bytes that are handed out at one moment of a step, beyond weights and input."""
    subject.clear()
    step = subject.step
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    now = most = 0
    events: list[Any] = profile.profiler.kineto_results.events()  # pyright: ignore
    for event in sorted(events, key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def filled(block: nn.Module, dtype: torch.dtype, device: torch.device) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return block.to(device, dtype)
