"""`vfm config`: prints what another subcommand would run with."""

from cli.main import command, command_names
from common.errors import VfmError, nearest

HELP = """
print the resolved configuration of a command

usage: vfm config COMMAND [KEY=VALUE ...]

Prints every key with its value, as YAML; values still needed are shown as ???.

examples:
  vfm config curate
  vfm config curate input=videos output=curated
"""


def run(argv: list[str]) -> int:
    names = [n for n in command_names() if hasattr(command(n), "schema")]
    if not argv or argv[0] not in names:
        given = (
            f"'{argv[0]}' has no configuration{nearest(argv[0], names)}"
            if argv
            else "no command is given"
        )
        raise VfmError(f"{given}; usage: vfm config COMMAND, with one of {', '.join(names)}")
    from cli.config import preview

    print(preview(argv[0], argv[1:], command(argv[0]).schema()), end="")
    return 0
