"""Decides, and does nothing: state and event in, the next state, effects and the reason out."""

from holdfast.watchdog.brain.table import advance, initial, next_wakeup

__all__ = ["advance", "initial", "next_wakeup"]
