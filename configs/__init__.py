"""Hydra configuration, as YAML: a file per subcommand, and a folder per group of choices."""
