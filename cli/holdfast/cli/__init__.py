"""Runbook commands and the embedded single-machine mode."""
