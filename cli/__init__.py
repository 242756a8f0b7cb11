"""The `vfm` command: one module of `cli.commands` per subcommand, and Hydra, which lives only here."""
