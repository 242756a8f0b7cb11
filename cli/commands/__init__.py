"""One module per subcommand.

A module holds `HELP` (its first line is the summary in `vfm --help`) and `run(argv) -> exit code`;
one that takes a configuration also `schema() -> dataclass`, so that `vfm config` can print it, and
one that takes long also `INTERRUPTED`, what it leaves to whoever presses Ctrl-C.
One with commands of its own may hold `help_of(argv) -> str` for them.
Importing a module is cheap: what is heavy is imported inside `run`.
"""
