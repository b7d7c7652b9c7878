"""The phases of a job: what leads from each to the next. Nothing else sets a phase.

docs/job-phases.md is written from this table and that of the handlers.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import changed


class Turn(Enum):
    """What may change the phase, in words."""

    TOO_FEW = "nobody of a round before is left, and too few members are there for a legal one"
    GATHERING = "enough members are there, and the rest is waited for"
    TESTING = "members are tested before they are given ranks"
    FIRST_ROUND = "the first round is shown"
    ROUND = "a round after another one is shown"
    TRAINS = "every rank completed a step; of a script that tells of none, every worker runs"
    BROKEN = "the round is over, and the next one cannot be formed yet"
    HELD = "somebody paused the job, or its spec suspends it, and what could be saved is"
    RESUMED = "nobody holds it any more"
    FINISHED = "every rank ended with success"
    FAILED = "only a human can help, or nobody heals it"
    RESTARTED = "somebody restarted it"
    FORMED_ANEW = "somebody restarted it before its first round"


LEADS_TO: Mapping[Turn, JobPhase] = MappingProxyType(
    {
        Turn.TOO_FEW: JobPhase.PENDING,
        Turn.GATHERING: JobPhase.FORMING,
        Turn.TESTING: JobPhase.PREFLIGHT,
        Turn.FIRST_ROUND: JobPhase.FORMING,
        Turn.ROUND: JobPhase.RECOVERING,
        Turn.TRAINS: JobPhase.RUNNING,
        Turn.BROKEN: JobPhase.RECOVERING,
        Turn.HELD: JobPhase.SUSPENDED,
        Turn.RESUMED: JobPhase.RECOVERING,
        Turn.FINISHED: JobPhase.SUCCEEDED,
        Turn.FAILED: JobPhase.FAILED,
        Turn.RESTARTED: JobPhase.RECOVERING,
        Turn.FORMED_ANEW: JobPhase.PENDING,
    }
)


def moved(state: JobState, turn: Turn, **fields: Any) -> JobState:
    """A copy of the state in the phase that this leads to, with some more fields replaced."""
    return changed(state, phase=LEADS_TO[turn], **fields)
