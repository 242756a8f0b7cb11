"""Raw video to captioned WebDataset shards: score every clip, decide, encode what is kept."""
