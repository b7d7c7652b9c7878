"""Sharded, asynchronous, atomic checkpoints that restore into any layout."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpointer import Checkpointer
    from holdfast.checkpoint.errors import NotEquivalent, NothingToRestore, SaveFailed, SavingStopped, Unfit
    from holdfast.checkpoint.runport import RunPort, Standalone

__all__ = [
    "Checkpointer",
    "RunPort",
    "Standalone",
    "NotEquivalent",
    "NothingToRestore",
    "SaveFailed",
    "SavingStopped",
    "Unfit",
]

_HOMES = {"Checkpointer": "checkpointer", "RunPort": "runport", "Standalone": "runport"}  # The rest are errors.


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: what serves snapshots in memory does without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = found
    return found
