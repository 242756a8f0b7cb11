"""What is measured of a clip beyond blur, motion and brightness: one module per kind."""
