"""Checks of an installation, and of a machine: facts are gathered by a shell, the checks on them are pure."""
