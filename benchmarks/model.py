"""Our transformer blocks against those of diffusers, and what a GPU makes of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from benchmarks._model_blocks import UNEQUAL, dit_subjects, packed_subjects, wan_subjects
from benchmarks._model_gpu import gpu_rows
from benchmarks._model_step import compared
from benchmarks.row import Row
from common.errors import ConfigError

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
                    subjects = make(settings.samples, dtype, device)
                    yield from compared(case, subjects, settings.rounds, settings.samples * 256)
            if "packed" in settings.cases:
                case = f"wan, lengths {', '.join(map(str, UNEQUAL))}, {name}"
                subjects = packed_subjects(dtype, device)
                yield from compared(case, subjects, settings.rounds, sum(UNEQUAL))
    finally:
        torch.set_num_threads(threads)
    if "gpu" in settings.cases:
        yield from gpu_rows(settings.samples, settings.rounds, settings.mfu_layers, device)
