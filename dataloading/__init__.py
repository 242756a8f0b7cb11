"""Shards to packed batches: index, order, packing plan, windows, state."""
