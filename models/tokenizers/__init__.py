"""Pixels to latents and back."""
