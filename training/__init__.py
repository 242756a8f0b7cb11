"""The trainer: step, optimizer, EMA, metrics, validation, resume."""
