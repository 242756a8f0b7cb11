"""`vfm demo`: the whole main job on sample footage, and the page that tells it."""
