"""Single-device maths: networks, objectives, tokenizers, text encoders. Knows no rank."""
