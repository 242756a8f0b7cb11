"""Attention: kernels against each other, blocks against one, and over processes."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from benchmarks._attention_kernels import (
    FP8,
    Passes,
    Problem,
    Unable,
    blocks,
    kernel,
    rounded,
    sdpa,
    transformer_engine,
)
from benchmarks._attention_ranks import WAYS, over_ranks
from benchmarks._clock import clock
from benchmarks.row import Row

HELP = """
attention kernels against each other, in blocks against in one, and over processes

kernels: forward and backward of every kernel that runs here, over lengths, beside PyTorch's own
  scaled_dot_product_attention (SDPA).
blocks: the same attention computed over 2, 4, 8 blocks of keys and merged by log-sum-exp: what a
  ring costs without a network.
ranks: a sequence over gloo processes, forward and backward, by PyTorch's experimental
  context_parallel and by ours; the CPU time of the slowest process, bytes sent where they are
  counted, and the largest error of the output.
gpu: kernels at 8k and 74k tokens with heads of 128, bf16 and FP8, dense and packed (THD), in
  TFLOPS and against the best of SDPA's backends; then blocks at 74k. Said to be not run where
  there is no GPU.

On a processor times are CPU seconds, on a GPU those between events. Subjects take turns; medians.

examples:
  vfm bench attention
  vfm bench attention lengths=[256,1024] rounds=9 ranks=0
"""


@dataclass(kw_only=True)
class Settings:
    lengths: list[int] = field(default_factory=lambda: [256, 1024, 4096, 16384])
    """Tokens, for the kernels on a processor."""
    heads: int = 2
    head_dim: int = 64
    rounds: int = 5
    """Above 4096 tokens a third of them."""
    eager_max: int = 4096
    """The eager kernel holds a square of the tokens."""
    blocks_at: int = 4096
    ranks: int = 2
    """Processes; 0 leaves them out."""
    ranks_at: int = 2048


Subject = tuple[str, Callable[[], Passes]]


def measure(settings: Settings) -> Iterator[Row]:
    cpu = torch.device("cpu")
    for length in settings.lengths:
        problem = Problem(
            lens=(length,), heads=settings.heads, head_dim=settings.head_dim, device=cpu
        )
        subjects: list[Subject] = [("SDPA", lambda p=problem: sdpa(p))]
        subjects += [("vfm cpu_flash", lambda p=problem: kernel(p, "cpu_flash"))]
        if length <= settings.eager_max:
            subjects += [("vfm eager", lambda p=problem: kernel(p, "eager"))]
        rounds = settings.rounds if length <= 4096 else max(1, settings.rounds // 3)
        yield from compare(f"kernels, {length} tokens", subjects, rounds)
    whole = Problem(
        lens=(settings.blocks_at,), heads=settings.heads, head_dim=settings.head_dim, device=cpu
    )
    yield from compare_blocks(f"blocks, {settings.blocks_at} tokens", whole, settings.rounds)
    if settings.ranks:
        yield from compare_ranks(settings)
    yield from on_gpu(settings.rounds)


def compare(case: str, subjects: Sequence[Subject], rounds: int) -> Iterator[Row]:
    """Forward and backward of each subject, in turns; a subject that is unable says why."""
    ready: dict[str, Passes] = {}
    for name, make in subjects:
        try:
            passes = make()
        except Unable as reason:
            yield row(case, name, "forward", None, f"not run: {reason}")
            continue
        passes.forward()
        if passes.backward is not None:
            passes.backward()
        ready[name] = passes
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, passes in ready.items():
            for what in ("forward", "backward"):
                run = getattr(passes, what)
                if run is not None:
                    times.setdefault((name, what), []).append(clock(run, passes.device))
    medians = {key: statistics.median(seconds) for key, seconds in times.items()}
    for (name, what), seconds in medians.items():
        passes = ready[name]
        yield row(case, name, what, seconds * 1e3, passes.unit)
        if passes.device.type == "cuda":
            flops = passes.flops * (1.0 if what == "forward" else 2.5)
            yield row(case, name, f"{what} rate", flops / seconds / 1e12, "TFLOPS")
    yield from ratios(case, medians, "SDPA")


def ratios(case: str, medians: dict[tuple[str, str], float], beside: str) -> Iterator[Row]:
    """How many times as fast as the fastest of the subjects whose name starts with `beside`."""
    for what in ("forward", "backward"):
        peers = [s for (name, w), s in medians.items() if w == what and name.startswith(beside)]
        for (name, w), seconds in medians.items():
            if peers and w == what and not name.startswith(beside):
                yield row(case, name, f"{what} of SDPA", min(peers) / seconds, "x")


def compare_blocks(case: str, problem: Problem, rounds: int) -> Iterator[Row]:
    """Merging n blocks, over one."""
    ready = {n: blocks(problem, n) for n in (1, 2, 4, 8)}
    times: dict[int, list[float]] = {n: [] for n in ready}
    for passes in ready.values():
        assert passes.backward is not None
        passes.backward()
    for _ in range(rounds):
        for n, passes in ready.items():
            seconds = clock(passes.forward, problem.device)
            assert passes.backward is not None
            times[n].append(seconds + clock(passes.backward, problem.device))
    whole = statistics.median(times[1])
    for n, seconds in times.items():
        median, spread = statistics.median(seconds), max(seconds) - min(seconds)
        name = f"vfm, {n} blocks"
        yield row(case, name, "forward and backward", median * 1e3, ready[n].unit)
        yield row(case, name, "spread", spread * 1e3, ready[n].unit)
        if n > 1:
            yield row(case, name, "overhead", (median / whole - 1) * 100, "%")


def compare_ranks(settings: Settings) -> Iterator[Row]:
    case = f"{settings.ranks} processes, {settings.ranks_at} tokens"
    for way in WAYS:
        try:
            found = over_ranks(
                way,
                ranks=settings.ranks,
                tokens=settings.ranks_at,
                heads=max(settings.heads, settings.ranks),
                head_dim=settings.head_dim,
                rounds=settings.rounds,
            )
        except Unable as reason:
            yield row(case, way, "forward and backward", None, f"not run: {reason}")
            continue
        yield row(case, way, "forward and backward", found.seconds * 1e3, "CPU ms")
        yield row(case, way, "error", found.error, "1")
        if found.num_bytes is not None:
            yield row(case, way, "sent", found.num_bytes / 2**20, "MiB")


GPU_TOKENS = (8192, 73728)
GPU_KERNELS = ("flash", "cudnn", "flash_varlen")


def on_gpu(rounds: int) -> Iterator[Row]:
    device = torch.device("cuda")
    absent = None if torch.cuda.is_available() else "no GPU on this machine"
    for tokens in GPU_TOKENS:
        for form, lens in (
            ("dense", (tokens,)),
            ("THD", (tokens // 2, tokens // 4, tokens // 8, tokens // 8)),
        ):
            case = f"GPU, {tokens} tokens, {form}"
            problem = Problem(
                lens=lens, heads=16, head_dim=128, device=device, dtype=torch.bfloat16
            )
            if absent:
                yield row(case, "all kernels", "forward", None, f"not run: {absent}")
                continue
            yield from compare(case, gpu_subjects(problem), rounds)
    case = f"GPU, blocks, {GPU_TOKENS[-1]} tokens"
    if absent:
        yield row(case, "vfm, 2 to 8 blocks", "overhead", None, f"not run: {absent}")
        return
    whole = Problem(
        lens=(GPU_TOKENS[-1],), heads=16, head_dim=128, device=device, dtype=torch.bfloat16
    )
    yield from compare_blocks(case, whole, rounds)


def gpu_subjects(problem: Problem) -> list[Subject]:
    made: list[Subject] = [
        (f"SDPA {backend}", lambda b=backend: sdpa(problem, b)) for backend in ("FLASH", "CUDNN")
    ]
    made += [(f"vfm {name}", lambda n=name: kernel(problem, n)) for name in GPU_KERNELS]
    made += [("vfm FlashAttention 3", lambda: kernel(problem, "flash_varlen", "FA3"))]
    made += [(f"vfm {FP8}", lambda: rounded(problem))]
    for fp8 in (False, True):
        name = f"TransformerEngine {'FP8' if fp8 else 'bf16'}"
        made += [(name, lambda f=fp8: transformer_engine(problem, f))]
    return made


def row(case: str, subject: str, metric: str, value: float | None, unit: str) -> Row:
    return Row(
        benchmark="attention", case=case, subject=subject, metric=metric, value=value, unit=unit
    )
