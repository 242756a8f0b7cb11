"""Our transformer blocks against those of diffusers, and what a GPU makes of them."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.row import Row
from common.errors import ConfigError
from models.attention import local_attention
from models.dit import DiTBlock, DiTConfig
from models.family import build_network, network_flops
from models.layers import MLP, PlainLinears
from models.multihead import HeadShape
from models.pack import PackLayout
from models.positions import RotaryPositions3D
from models.wan import WanBlock, WanConfig

HELP = """
a training step of our transformer blocks, beside diffusers' with the same sub-blocks

A step is forward and backward of one block, by its input and all its weights, from the same given
conditioning, at two shapes: DiT-B/2 (width 768, self-attention and MLP) and Wan 2.1 1.3B (width
1536, cross-attention too). Both sides hold the same numbers of weights and do the same products.
Subjects take turns over `rounds`; time is the median and its spread (90th less 10th percentile).
On a CPU it is processor time, which others on the machine disturb less than the clock. Memory is
what is kept for the backward, and the peak of what the allocator hands out during a step.

"padded" has samples of unequal lengths as a batch of the longest, "packed" has them end to end.
Rates are those of the real tokens.

On a GPU also: blocks under torch.compile, and whole steps of `mfu_layers` layers of the 7B at 8,192
and 73,728 tokens, with the share of the card's peak that useful operations reach (MFU).

examples:
  vfm bench model
  vfm bench model rounds=3 samples=1 cases=[wan,gpu] precisions=[fp32]
"""

PEAK_TFLOPS = {"H100": 989.4, "H200": 989.4, "H800": 989.4, "A100": 312.0, "B200": 2250.0}
"""Dense bf16, as NVIDIA's data sheets give it."""
TEXT_TOKENS = 512
CASES = ("dit", "wan", "packed", "gpu")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(kw_only=True)
class Settings:
    cases: list[str] = field(default_factory=lambda: list(CASES))
    """Of dit, wan, packed, gpu."""
    precisions: list[str] = field(default_factory=lambda: list(PRECISIONS))
    """Of fp32, bf16."""
    samples: int = 2
    """Samples of 256 tokens each."""
    rounds: int = 9
    threads: int = 1
    mfu_layers: int = 4
    """Of the 28: a layer costs the same wherever it stands."""

    def __post_init__(self) -> None:
        for name, known in (("cases", CASES), ("precisions", tuple(PRECISIONS))):
            for given in getattr(self, name):
                if given not in known:
                    raise ConfigError(f"{name}: {given} is none of {', '.join(known)}")


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


def measure(settings: Settings) -> Iterator[Row]:
    """A row for each case, subject and metric; those that need a GPU say so where there is none."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        for name in settings.precisions:
            dtype = PRECISIONS[name]
            for kind, make in {"dit": dit_subjects, "wan": wan_subjects}.items():
                if kind in settings.cases:
                    case = f"{kind}, {settings.samples} x 256 tokens, {name}"
                    yield from _compared(case, make(settings.samples, dtype, device), settings)
            if "packed" in settings.cases:
                case = f"wan, lengths {', '.join(map(str, UNEQUAL))}, {name}"
                subjects = packed_subjects(dtype, device)
                yield from _compared(case, subjects, settings, tokens=sum(UNEQUAL))
    finally:
        torch.set_num_threads(threads)
    if "gpu" in settings.cases:
        yield from gpu_rows(settings, device)


def _row(case: str, subject: str, metric: str, value: float | None, unit: str) -> Row:
    return Row(benchmark="model", case=case, subject=subject, metric=metric, value=value, unit=unit)


def _compared(
    case: str, subjects: list[Subject] | str, settings: Settings, tokens: int = 0
) -> Iterator[Row]:
    if isinstance(subjects, str):
        yield _row(case, "diffusers", "time", None, subjects)
        return
    tokens = tokens or settings.samples * 256
    times: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for subject in subjects:
        subject.step()
    for i in range(settings.rounds):
        for subject in subjects if i % 2 == 0 else subjects[::-1]:
            times[subject.name].append(_seconds(subject.step))
    kept = {s.name: kept_bytes(s) for s in subjects}
    peaks = {s.name: peak_bytes(s) for s in subjects}
    base = subjects[0].name
    for subject in subjects:
        name, seconds = subject.name, times[subject.name]
        median = statistics.median(seconds)
        low, *_, high = statistics.quantiles(seconds, n=10) if len(seconds) > 1 else seconds * 2
        yield _row(case, name, "time", median * 1e3, "ms")
        yield _row(case, name, "spread", (high - low) * 1e3, "ms")
        yield _row(case, name, "rate", tokens / median, "tokens/s")
        yield _row(case, name, "kept", kept[name] / 2**20, "MiB")
        yield _row(case, name, "peak", peaks[name] / 2**20, "MiB")
        # Of each round, so that what the machine did meanwhile weighs on both sides alike.
        ratio = statistics.median(a / b for a, b in zip(seconds, times[base], strict=True))
        yield _row(case, name, "time ratio", ratio, "1")
        yield _row(case, name, "kept ratio", kept[name] / kept[base], "1")
        yield _row(case, name, "peak ratio", peaks[name] / peaks[base], "1")


def _seconds(step: Callable[[], None]) -> float:
    """Processor time of a step on a CPU, time of the device's stream on a GPU."""
    if not torch.cuda.is_available():
        begin = time.process_time()
        step()
        return time.process_time() - begin
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    step()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3


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


def _subject(
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


def _filled(block: nn.Module, dtype: torch.dtype, device: torch.device) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return block.to(device, dtype)


class _Given(nn.Module):
    """Stands where diffusers' block computes its conditioning, and gives the one it was given."""

    def __init__(self, condition: Tensor) -> None:
        super().__init__()
        self.condition = condition

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        return self.condition


def dit_subjects(samples: int, dtype: torch.dtype, device: torch.device) -> list[Subject] | str:
    """DiT-B/2: diffusers' block, and ours with its sub-blocks, biases and no norms of q and k."""
    try:
        from diffusers.models.attention import BasicTransformerBlock
    except ImportError:
        return "not run: diffusers is not installed"
    h, heads = 768, 12
    torch.manual_seed(0)
    x = torch.randn(samples, 256, h).to(device, dtype)
    condition = torch.randn(samples, h).to(device, dtype)
    theirs: Any = BasicTransformerBlock(
        h,
        heads,
        h // heads,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=10,
        attention_bias=True,
        norm_type="ada_norm_zero",
        norm_elementwise_affine=False,
    )
    theirs.norm1.emb = None
    theirs = _filled(theirs, dtype, device)
    theirs.norm1.emb = _Given(condition)
    linears = PlainLinears()
    shape = HeadShape(dim=h, num_heads=heads, qk_norm="none", bias=True)
    mlp = MLP(h, 4 * h, linears, bias=True)
    ours = _filled(DiTBlock(shape, None, mlp, 0, local_attention, linears), dtype, device)
    layout = PackLayout.build([(1, 16, 16)] * samples, [0] * samples, torch.zeros(samples))
    layout = replace(layout, fps=layout.fps.to(device))
    _check_weights(theirs, ours)
    return [
        _subject("diffusers", theirs, lambda x: theirs(x), x.clone().requires_grad_()),
        _subject(
            "vfm",
            ours,
            lambda x: ours(x, condition, None, None, layout, None),
            x.flatten(0, 1).requires_grad_(),
        ),
    ]


def _wan_blocks(dtype: torch.dtype, device: torch.device) -> tuple[Any, Any, WanConfig] | str:
    try:
        from diffusers.models.transformers.transformer_wan import WanTransformerBlock
    except ImportError:
        return "not run: diffusers is not installed"
    config = WanConfig()
    theirs = WanTransformerBlock(
        config.hidden_size, config.ffn_size, config.num_heads, cross_attn_norm=True
    )
    ours = WanBlock(config, local_attention, PlainLinears())
    _check_weights(theirs, ours)
    return _filled(theirs, dtype, device), _filled(ours, dtype, device), config


def _check_weights(theirs: nn.Module, ours: nn.Module) -> None:
    counts = [sum(p.numel() for p in block.parameters()) for block in (theirs, ours)]
    assert counts[0] == counts[1], f"blocks of {counts} weights are not the same sub-blocks"


def _wan_theirs(theirs: Any, config: WanConfig, grids: list[tuple[int, int, int]]) -> Any:
    """Diffusers' rotary positions for a batch whose rows have the longest of the grids."""
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

    rope = WanRotaryPosEmbed(config.hidden_size // config.num_heads, (1, 2, 2), 1024)
    longest = max(grids)
    frame = torch.zeros(1, 1, longest[0], 2 * longest[1], 2 * longest[2])
    parameter = next(theirs.parameters())
    return tuple(part.to(parameter.device) for part in rope(frame))


def _wan_side(
    name: str, block: Any, config: WanConfig, grids: list[tuple[int, int, int]], *, ours: bool
) -> Subject:
    """One subject over samples of `grids`; diffusers' side takes them as a padded batch."""
    parameter = next(block.parameters())
    where = {"device": parameter.device, "dtype": parameter.dtype}
    n, h = len(grids), config.hidden_size
    torch.manual_seed(0)
    modulation = torch.randn(n, 6, h).to(**where)
    text = torch.randn(n, TEXT_TOKENS, h).to(**where)
    if not ours:
        rotary = _wan_theirs(block, config, grids)
        t, height, width = max(grids)
        x = torch.randn(n, t * height * width, h).to(**where).requires_grad_()
        return _subject(name, block, lambda x: block(x, text, modulation, rotary), x)
    layout = PackLayout.build(grids, [TEXT_TOKENS] * n, torch.zeros(n, device=parameter.device))
    positions = RotaryPositions3D(h // config.num_heads, base_fps=None)
    turned = positions(layout, parameter.dtype)
    x = torch.randn(layout.num_tokens, h).to(**where).requires_grad_()
    flat = text.flatten(0, 1)
    return _subject(name, block, lambda x: block(x, modulation, flat, layout, turned), x)


def wan_subjects(samples: int, dtype: torch.dtype, device: torch.device) -> list[Subject] | str:
    """Wan 2.1 1.3B: diffusers' block and ours, with the same sub-blocks."""
    blocks = _wan_blocks(dtype, device)
    if isinstance(blocks, str):
        return blocks
    theirs, ours, config = blocks
    grids = [(1, 16, 16)] * samples
    return [
        _wan_side("diffusers", theirs, config, grids, ours=False),
        _wan_side("vfm", ours, config, grids, ours=True),
    ]


UNEQUAL = (256, 192, 128, 64)
"""Tokens of the samples of the packed case: the mean is 0.625 of the longest."""


def packed_subjects(dtype: torch.dtype, device: torch.device) -> list[Subject] | str:
    """Samples of unequal lengths: padded by diffusers and by us, and packed."""
    blocks = _wan_blocks(dtype, device)
    if isinstance(blocks, str):
        return blocks
    theirs, ours, config = blocks
    grids = [(1, n // 16, 16) for n in UNEQUAL]
    padded = [max(grids)] * len(grids)
    return [
        _wan_side("diffusers, padded", theirs, config, grids, ours=False),
        _wan_side("vfm, padded", ours, config, padded, ours=True),
        _wan_side("vfm, packed", ours, config, grids, ours=True),
    ]


def gpu_rows(settings: Settings, device: torch.device) -> Iterator[Row]:
    """Blocks under torch.compile, and MFU of the 7B's layers, on a GPU."""
    compiled = f"wan, {settings.samples} x 256 tokens, bf16, compiled"
    sizes = {8192: (32, 16, 16), 73_728: (32, 48, 48)}
    cases = {f"7B, {settings.mfu_layers} layers, {n} tokens, bf16": g for n, g in sizes.items()}
    if device.type != "cuda":
        for case in (compiled, *cases):
            yield _row(case, "vfm", "time", None, "not run: no GPU")
        return
    blocks = _wan_blocks(torch.bfloat16, device)
    if isinstance(blocks, str):
        yield _row(compiled, "diffusers", "time", None, blocks)
    else:
        theirs, ours, config = blocks
        grids = [(1, 16, 16)] * settings.samples
        subjects = [
            _wan_side("diffusers", torch.compile(theirs), config, grids, ours=False),
            _wan_side("vfm", torch.compile(ours), config, grids, ours=True),
        ]
        yield from _compared(compiled, subjects, settings)
    for case, grid in cases.items():
        yield from _mfu(case, grid, settings, device)


def _mfu(
    case: str, grid: tuple[int, int, int], settings: Settings, device: torch.device
) -> Iterator[Row]:
    config = DiTConfig(
        hidden_size=4096,
        num_layers=settings.mfu_layers,
        num_heads=32,
        adaln_rank=256,
        project_text=False,
        absolute_positions="none",
    )
    text_dim, token_dim, tokens = 1024, 64, grid[0] * grid[1] * grid[2]
    card = torch.cuda.get_device_name(device)
    peak = next((tflops for name, tflops in PEAK_TFLOPS.items() if name in card), None)
    flops = network_flops(
        config, grids=[grid], lens_text=[TEXT_TOKENS], token_dim=token_dim, text_dim=text_dim
    )
    with device:
        network = build_network(config, token_dim=token_dim, text_dim=text_dim)
        network = _filled(network, torch.bfloat16, device)
        layout = PackLayout.build([grid], [TEXT_TOKENS], torch.tensor([24.0], device=device))
        x = torch.randn(tokens, token_dim, dtype=torch.bfloat16)
        text = torch.randn(TEXT_TOKENS, text_dim, dtype=torch.bfloat16)
        noise = torch.zeros(1)
    for name, model in (("vfm, eager", network), ("vfm, compiled", torch.compile(network))):

        def forward(x: Tensor, model: Any = model) -> Tensor:
            return model(x, noise, text, layout)

        subject = _subject(name, network, forward, x)
        try:
            for _ in range(3):
                subject.step()
            seconds = statistics.median(_seconds(subject.step) for _ in range(settings.rounds))
        except torch.cuda.OutOfMemoryError:
            yield _row(case, name, "time", None, "not run: out of memory")
            continue
        tflops = flops.training / seconds / 1e12
        yield _row(case, name, "time", seconds * 1e3, "ms")
        yield _row(case, name, "useful operations", tflops, "TFLOPS")
        yield _row(case, name, "peak", peak_bytes(subject) / 2**20, "MiB")
        if peak is None:
            yield _row(case, name, "MFU", None, f"the peak of {card} is not known")
        else:
            yield _row(case, name, "MFU", tflops / peak, "1")
