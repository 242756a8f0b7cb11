"""Settings for all tests."""

from hypothesis import settings

# The same cases in every run: a change fails or passes for what it is.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
