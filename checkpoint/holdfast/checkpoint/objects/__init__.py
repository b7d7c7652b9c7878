"""Checkpoints in an object store: no folders, no renames, no locks, but puts that fail when the name is taken."""
