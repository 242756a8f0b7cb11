"""From a checkpoint and a prompt to a video: samplers, guidance, decoding."""
