"""What a GPU makes of our blocks: under torch.compile, and the share of its peak they reach."""

import statistics
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks._clock import clock
from benchmarks._model_blocks import TEXT_TOKENS, wan_blocks, wan_side
from benchmarks._model_step import (
    compared,
    filled,
    make_subject,
    peak_bytes,
    row_of,
)
from benchmarks.row import Row
from models.dit import DiTConfig
from models.encoding import choose_device
from models.family import build_network, network_flops
from models.pack import PackLayout

PEAK_TFLOPS = {"H100": 989.4, "H200": 989.4, "H800": 989.4, "A100": 312.0, "B200": 2250.0}
"""Dense bf16, as NVIDIA's data sheets give it."""


def gpu_rows(samples: int, rounds: int, layers: int, device: torch.device) -> Iterator[Row]:
    """Blocks under torch.compile, and MFU of the 7B's layers, on a GPU."""
    compiled = f"wan, {samples} x 256 tokens, bf16, compiled"
    sizes = {8192: (32, 16, 16), 73_728: (32, 48, 48)}
    cases = {f"7B, {layers} layers, {n} tokens, bf16": g for n, g in sizes.items()}
    if device.type != "cuda":
        for case in (compiled, *cases):
            yield row_of(case, "vfm", "time", None, "not run: no GPU")
        return
    blocks = wan_blocks(torch.bfloat16, device)
    if isinstance(blocks, str):
        yield row_of(compiled, "diffusers", "time", None, blocks)
    else:
        theirs, ours, config = blocks
        grids = [(1, 16, 16)] * samples
        subjects = [
            wan_side("diffusers", torch.compile(theirs), config, grids, ours=False),
            wan_side("vfm", torch.compile(ours), config, grids, ours=True),
        ]
        yield from compared(compiled, subjects, rounds, samples * 256)
    for case, grid in cases.items():
        yield from _mfu(case, grid, rounds, layers, device)


def _mfu(
    case: str, grid: tuple[int, int, int], rounds: int, layers: int, device: torch.device
) -> Iterator[Row]:
    config = DiTConfig(
        hidden_size=4096,
        num_layers=layers,
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
        network = filled(network, torch.bfloat16, device)
        layout = PackLayout.build([grid], [TEXT_TOKENS], torch.tensor([24.0], device=device))
        x = torch.randn(tokens, token_dim, dtype=torch.bfloat16)
        text = torch.randn(TEXT_TOKENS, text_dim, dtype=torch.bfloat16)
        noise = torch.zeros(1)
    for name, model in (("vfm, eager", network), ("vfm, compiled", torch.compile(network))):

        def forward(x: Tensor, model: Any = model) -> Tensor:
            return model(x, noise, text, layout)

        subject = make_subject(name, network, forward, x)
        try:
            for _ in range(3):
                subject.step()
            seconds = statistics.median(
                clock(subject.step, choose_device("auto")) for _ in range(rounds)
            )
        except torch.cuda.OutOfMemoryError:
            yield row_of(case, name, "time", None, "not run: out of memory")
            continue
        tflops = flops.training / seconds / 1e12
        yield row_of(case, name, "time", seconds * 1e3, "ms")
        yield row_of(case, name, "useful operations", tflops, "TFLOPS")
        yield row_of(case, name, "peak", peak_bytes(subject) / 2**20, "MiB")
        if peak is None:
            yield row_of(case, name, "MFU", None, f"the peak of {card} is not known")
        else:
            yield row_of(case, name, "MFU", tflops / peak, "1")
