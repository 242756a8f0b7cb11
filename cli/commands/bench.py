"""`vfm bench`: runs one benchmark and shows, or records, what it measured."""

import ast
import importlib
import json
import pkgutil
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import benchmarks
from common.errors import VfmError, nearest

HELP = """
measure, beside others who do the same work

usage: vfm bench NAME [KEY=VALUE ...] [json=FILE]
       vfm bench NAME --help    what it measures and how, with its settings
       vfm bench                the benchmarks there are

Prints a table with the machine and the versions; json=FILE also writes the rows
{benchmark, case, subject, metric, value, unit}. Measure on a quiet machine.

examples:
  vfm bench packing
  vfm bench packing json=packing.json
"""

_HELPERS = {"row"}
INTERRUPTED = "nothing is recorded"


def run(argv: list[str]) -> int:
    if not argv:
        print(overview())
        return 0
    module = benchmark(argv[0])
    words = argv[1:]
    given = [word.removeprefix("json=") for word in words if word.startswith("json=")]
    target = Path(given[-1]).expanduser() if given else None
    if target is not None and (target.is_dir() or not target.parent.is_dir()):
        raise VfmError(f"json={given[-1]}: a file in a folder that exists is needed")
    from cli.config import settings

    example = f"vfm bench {argv[0]}"
    typed = [word for word in words if not word.startswith("json=")]
    _measure(argv[0], module, settings(typed, module.Settings, example=example), target)
    return 0


def help_of(argv: list[str]) -> str:
    """The help of the benchmark that is named, with its settings and their defaults."""
    named = [word for word in argv if "=" not in word and not word.startswith("-")]
    if not named:
        return f"{HELP.strip()}\n\n{overview()}"
    from cli.config import to_yaml

    module = benchmark(named[0])
    lines = to_yaml(module.Settings()).splitlines()
    return "\n".join([module.HELP.strip(), "", "settings and their defaults:", *_indent(lines)])


def overview() -> str:
    names = _names()
    width = max(map(len, names))
    first = {name: _help(name).strip().splitlines()[0] for name in names}
    return "\n".join(["benchmarks:", *(f"  {name:<{width}}  {first[name]}" for name in names)])


def benchmark(name: str) -> ModuleType:
    """The module of a benchmark. Raises `VfmError` with the nearest names where there is none."""
    names = _names()
    if name not in names:
        raise VfmError(
            f"there is no benchmark '{name}'{nearest(name, names)}; benchmarks: {', '.join(names)}"
        )
    return importlib.import_module(f"benchmarks.{name}")


def _names() -> list[str]:
    found = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    return sorted(name for name in found if name not in _HELPERS and not name.startswith("_"))


def _help(name: str) -> str:
    """`HELP` of a benchmark as it stands in its file: a list of them must not import them all."""
    (folder,) = benchmarks.__path__
    tree = ast.parse((Path(folder) / f"{name}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HELP":
            return ast.literal_eval(node.value)
    raise AssertionError(f"benchmarks/{name}.py has no HELP")


def _measure(name: str, module: ModuleType, settings: Any, target: Path | None) -> None:
    from benchmarks.row import machine, table
    from cli.schema import plain
    from common.storage import write_atomic

    about = machine()
    versions = about["versions"]
    gpu = about["gpu"] or "no GPU"
    print(f"{about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB, {gpu}")
    print(f"{about['system']}, python {about['python']}")
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    print(" ".join(f"{key}={value}" for key, value in plain(settings).items()), flush=True)
    rows = list(module.measure(settings))
    print(table(rows))
    if target is not None:
        record = {
            "benchmark": name,
            "settings": plain(settings),
            "machine": about,
            "rows": [asdict(row) for row in rows],
        }
        write_atomic(target, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
        print(f"written: {target}")


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]
