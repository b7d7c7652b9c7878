"""Snapshots in host memory that outlive the trainer, and their copies on other nodes. Imports no torch."""
