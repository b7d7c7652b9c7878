"""Inside the training process: publishes the rank record, enters rounds, hands over the restore directive."""

from holdfast.api.control import Assignment
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Reentry
from holdfast.trainer.guest import GuestRun, joined
from holdfast.trainer.outerstep import OuterStep
from holdfast.trainer.replicas import Replicas
from holdfast.trainer.run import Run
from holdfast.trainer.spikeguard import SpikeGuard
from holdfast.trainer.stay import RoundEnded

__all__ = [
    "Run",
    "Replicas",
    "OuterStep",
    "GuestRun",
    "joined",
    "RoundEnded",
    "SpikeGuard",
    "Assignment",
    "Phase",
    "Reentry",
]
