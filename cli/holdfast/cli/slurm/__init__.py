"""Holdfast inside a Slurm allocation."""
