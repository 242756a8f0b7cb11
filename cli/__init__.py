"""The `vfm` command: a module of `cli.commands` per subcommand, and Hydra, which lives only here."""
