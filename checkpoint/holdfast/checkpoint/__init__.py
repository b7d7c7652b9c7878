"""Sharded, asynchronous, atomic checkpoints that restore into any layout."""

from holdfast.checkpoint.checkpointer import Checkpointer
from holdfast.checkpoint.errors import NothingToRestore, SaveFailed, SavingStopped, Unfit
from holdfast.checkpoint.runport import RunPort, Standalone

__all__ = ["Checkpointer", "RunPort", "Standalone", "NothingToRestore", "SaveFailed", "SavingStopped", "Unfit"]
