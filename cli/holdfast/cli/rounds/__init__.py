"""The rounds of a job beside each other: what changed between them, and what that did. Pure functions."""
