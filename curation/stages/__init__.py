"""The work on one item: one file per stage."""
