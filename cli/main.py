"""The `vfm` command: finds the subcommand, runs it, turns errors into one line and an exit code.

Only the standard library is imported here, so that `vfm --help` answers at once.
"""

import errno
import importlib
import importlib.metadata
import os
import pkgutil
import sys
import traceback
from types import ModuleType

import cli.commands
from common.errors import VfmError, nearest

EXIT_REQUEST = 2
EXIT_DEFECT = 70  # EX_SOFTWARE of sysexits.h; 1 means "done, but some items failed"
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# The machine refuses, and says itself why; every other OSError is a defect that wants a traceback.
_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EMFILE)
_ORDER = ("demo", "curate", "pretrain", "generate", "view", "config", "doctor", "bench")
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
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
    except VfmError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\ninterrupted: the same command continues where it stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`vfm config curate | head`): nothing is wrong and nobody listens.
        # Python flushes stdout once more at exit, which must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _REFUSALS:
            where = f": {error.filename}" if error.filename else ""
            print(f"error: {error.strerror}{where}", file=sys.stderr)
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
        print(module.HELP.strip())
        return 0
    return module.run(argv[1:])


def _overview() -> str:
    names = command_names()
    width = max(map(len, names))
    lines = [f"  {n:<{width}}  {command(n).HELP.strip().splitlines()[0]}" for n in names]
    return _USAGE.format(commands="\n".join(lines))
