"""The `vfm` command: finds the subcommand, runs it, turns errors into one line and an exit code.

Only the standard library is imported here, so that `vfm --help` answers at once.
"""

import errno
import importlib
import importlib.metadata
import io
import os
import pkgutil
import sys
import traceback
from pathlib import Path
from types import ModuleType

import cli.commands
from common.errors import VfmError, nearest

EXIT_REQUEST = 2
EXIT_DEFECT = 70  # EX_SOFTWARE of sysexits.h; 1 means "done, but some items failed"
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_ELSEWHERE = "give another path"
_MAKE_ROOM = "make room, and give the same command again"
_REFUSALS = {
    errno.EACCES: f"access is denied; change the permissions, or {_ELSEWHERE}",
    errno.EPERM: f"this is not permitted; {_ELSEWHERE}",
    errno.EROFS: f"the file system can only be read; {_ELSEWHERE}",
    errno.ENOTDIR: f"a file where a folder is needed; {_ELSEWHERE}",
    errno.EISDIR: f"a folder where a file is needed; {_ELSEWHERE}",
    errno.EEXIST: f"something of another kind has this name; {_ELSEWHERE}",
    errno.ENAMETOOLONG: "the name is too long; give a shorter one",
    errno.ELOOP: f"a link that leads back to itself; {_ELSEWHERE}",
    errno.ENOSPC: f"the disk is full; {_MAKE_ROOM}",
    errno.EDQUOT: f"the quota of the disk is used up; {_MAKE_ROOM}",
    errno.EMFILE: "too many open files; raise the limit, as with `ulimit -n 65536`",
}
"""What the machine refuses, in words; every other OSError is a defect that wants a traceback."""
_ORDER = (
    "demo",
    "curate",
    "refilter",
    "shard",
    "tokenizer",
    "encode",
    "pretrain",
    "finetune",
    "convert",
    "generate",
    "data",
    "view",
    "config",
    "doctor",
    "bench",
)
_USAGE = """\
vfm: raw video to a trained video model and to generated video

usage: vfm COMMAND [KEY=VALUE ...]
       vfm COMMAND --help      what it does, with examples
       vfm --version

commands:
{commands}

Settings are KEY=VALUE; `vfm config COMMAND` prints them all. dry_run=true shows what would be done.
Exit codes: 0 done; 1 done, but some items failed; 2 the request was wrong; 3 nothing was produced.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs `vfm` and returns its exit code. `argv` is without the program's name."""
    argv = sys.argv[1:] if argv is None else argv
    # OpenMP's threads wait for each other in busy loops, which makes training slower by tens of
    # times as soon as anything else wants a core; not to spin at all halves the speed of small
    # models on a quiet machine. A short spin is near the best of both. Read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    _print_anything()
    try:
        code = _dispatch(argv)
        if sys.stdout is not None:  # closed by the caller, `>&-`
            sys.stdout.flush()
    except VfmError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"\ninterrupted{_after_interrupt(argv)}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`vfm config curate | head`): nothing is wrong and nobody listens.
        # Python flushes stdout once more at exit, which must not raise again.
        _give_up_stdout()
        return EXIT_BROKEN_PIPE
    except Exception as error:
        refusal = _refusal(error, argv) if isinstance(error, OSError) else None
        if refusal is not None:
            print(f"error: {refusal}", file=sys.stderr)
            _give_up_stdout_if_full()
            return EXIT_REQUEST
        traceback.print_exc()
        print("error: this is a defect of vfm, see the traceback above", file=sys.stderr)
        return EXIT_DEFECT
    return code


def command_names() -> list[str]:
    """All subcommands, in the order of the work, then by name."""
    names = [m.name for m in pkgutil.iter_modules(cli.commands.__path__)]
    return sorted(names, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n))


def command(name: str) -> ModuleType:
    """The module of a subcommand. Raises `VfmError` with the nearest names where there is none."""
    names = command_names()
    if name not in names:
        raise VfmError(
            f"there is no command '{name}'{nearest(name, names)}; commands: {', '.join(names)}"
        )
    return importlib.import_module(f"cli.commands.{name}")


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        if len(argv) > 1:
            print(command(argv[1]).HELP.strip())
        else:
            print(_overview(), end="")
        return 0 if argv else EXIT_REQUEST
    if argv[0] in ("-V", "--version"):
        print(f"vfm {importlib.metadata.version('vfm')}")
        return 0
    module = command(argv[0])
    if any(word in ("-h", "--help") for word in argv[1:]):
        print(module.help_of(argv[1:]) if hasattr(module, "help_of") else module.HELP.strip())
        return 0
    return module.run(argv[1:])


def _print_anything() -> None:
    """A sign that the terminal's encoding has not is printed as its number, not as a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _give_up_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _give_up_stdout_if_full() -> None:
    """`vfm ... > FILE` on a full disk: Python would try once more at exit, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        _give_up_stdout()


def _after_interrupt(argv: list[str]) -> str:
    """What Ctrl-C left, in the words of the command."""
    known = argv and argv[0] in command_names()
    what = getattr(command(argv[0]), "INTERRUPTED", "") if known else ""
    return f": {what}" if what else ""


def _refusal(error: OSError, argv: list[str]) -> str | None:
    """The refusal of the machine with the word of the request that led to it; None where the
    error is none."""
    if error.errno == errno.ENOENT and not _here_exists():
        return "the current folder does not exist any more; change to one that does"
    code, path = error.errno, error.filename
    if code == errno.ENOENT and isinstance(path, str):
        # A folder above a place that was asked for cannot be made: /proc is such a file system.
        asked = [w for w in argv if "=" in w and _lies_in(_value(w), path)]
        return (
            f"{asked[0]}: nothing can be made in {Path(path).parent}; {_ELSEWHERE}"
            if asked
            else None
        )
    if code not in _REFUSALS:
        return None
    if not isinstance(path, str):
        return _REFUSALS[code]
    word = max((w for w in argv if _lies_in(path, _value(w))), key=len, default="")
    if code in (errno.ENOTDIR, errno.EEXIST):
        parts = map(str, (Path(path), *Path(path).parents))
        files = [p for p in parts if os.path.isfile(p)]  # noqa: PTH113 (never raises)
        code, path = (errno.ENOTDIR, files[0]) if files else (code, path)
    told = word.endswith(path) or code == errno.ENAMETOOLONG
    names = [word] if word and told else [word, path]
    return ": ".join([*filter(None, names), _REFUSALS[code]])


def _value(word: str) -> str:
    return word.partition("=")[2] if "=" in word else word


def _lies_in(path: str, folder: str) -> bool:
    return bool(path and folder) and Path(path).absolute().is_relative_to(Path(folder).absolute())


def _here_exists() -> bool:
    try:
        Path.cwd()
    except OSError:
        return False
    return True


def _overview() -> str:
    names = command_names()
    width = max(map(len, names))
    lines = [f"  {n:<{width}}  {command(n).HELP.strip().splitlines()[0]}" for n in names]
    return _USAGE.format(commands="\n".join(lines))
