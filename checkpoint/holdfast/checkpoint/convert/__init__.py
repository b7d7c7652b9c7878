"""Checkpoints of other formats, read, compared and written, one tensor at a time."""
