"""Captions to embeddings."""
