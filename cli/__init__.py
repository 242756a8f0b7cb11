"""The `vfm` command: a module of `cli.commands` per subcommand; Hydra lives only here."""
