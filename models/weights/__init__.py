"""Weights of other projects' files, in and out, exactly."""
