"""What every package shares: errors, random numbers, video files, storage, page templates."""
