"""A deleted job is wound up: one more checkpoint, its pods go, the watchdog forgets it, then the job is let go.

The finalizer that holds the job until then must never hold it for ever: each wait has an end.

Nodes that the job took out of service stay so: they are faulty, whoever ran there, until somebody repaired them.
"""

from enum import Enum

import msgspec

from holdfast.api.status import JobPhase
from holdfast.api.trainingjob import policy_of
from holdfast.operator.action import Action, Forget, SetFinalizer, Submit
from holdfast.operator.belongings import BUDGET, SERVICE, removed
from holdfast.operator.case import ENDED, Case, Decision
from holdfast.operator.marks import FINALIZER
from holdfast.operator.staffing import delete, force

AWAY_S = 120.0
"""How long a job waits for a watchdog that is away, or decides nothing, before it goes without a checkpoint."""
WIND_UP_S = 600.0
"""The watchdog gives up on a checkpoint long before; and pods that nobody can end are left to Kubernetes."""
LOOK_AGAIN_S = 5.0
STILL = ENDED | {JobPhase.SUSPENDED}


class Waiting(Enum):
    """Why the pods of a deleted job may go, or not yet."""

    SETTLED = "the job is still"
    UNKNOWN_JOB = "the watchdog does not know the job"
    INVALID = "the spec is refused, so no checkpoint can be asked for"
    AWAY = "the watchdog has been away for too long; no checkpoint was asked for"
    OVERDUE = "winding up took too long"
    SUSPENDING = "waiting for the last checkpoint"


WITHOUT_CHECKPOINT = frozenset((Waiting.INVALID, Waiting.AWAY, Waiting.OVERDUE))


def waiting(case: Case, deleted_at: float) -> Waiting:
    """What winding up waits for."""
    since_s = case.now - deleted_at
    if case.report is not None and case.report.status.phase in STILL:
        return Waiting.SETTLED
    if case.ended is not None:
        return Waiting.SETTLED
    if case.connected and case.observed.report is not None and case.report is None:
        return Waiting.UNKNOWN_JOB
    if case.job is None:
        return Waiting.INVALID
    undecided = case.observed.report is None or case.observed.report.trouble is not None
    if (undecided or case.observed.heard_age_s >= AWAY_S) and since_s >= AWAY_S:
        return Waiting.AWAY
    return Waiting.OVERDUE if since_s >= WIND_UP_S else Waiting.SUSPENDING


def still_needed(case: Case, deleted_at: float) -> bool:
    """Whether the watchdog still has something to decide for the deleted job, and so has to see."""
    return FINALIZER in case.metadata.finalizers and waiting(case, deleted_at) is Waiting.SUSPENDING


def wind_up(case: Case, deleted_at: float) -> Decision:
    """The next step towards letting the job go."""
    if FINALIZER not in case.metadata.finalizers:
        return Decision((), "the job is let go")
    why = waiting(case, deleted_at)
    if why is Waiting.SUSPENDING:
        return Decision(_suspension(case), why.value, LOOK_AGAIN_S)
    roll = case.roll
    pods = [*roll.there, *roll.ended]
    belongings = (*removed(SERVICE, case.observed.services), *removed(BUDGET, case.observed.budgets))
    if pods and case.now - deleted_at < WIND_UP_S + AWAY_S:
        going = [*roll.live, *roll.stranded, *roll.released, *roll.ended]
        actions: list[Action] = [delete(case, pod, "the job is deleted") for pod in going]
        actions += force(case, roll.leaving, "the job is deleted and its node cannot let it go")
        return Decision((*actions, *belongings), f"{why.value}; {len(pods)} pods are to go", LOOK_AGAIN_S)
    forget = (Forget(),) if case.connected else ()
    left = f"{len(pods)} pods that nobody can end are left to Kubernetes" if pods else "nothing is left"
    return Decision((*belongings, *forget, SetFinalizer(held=False)), f"{why.value}; {left}")


def _suspension(case: Case) -> tuple[Action, ...]:
    """The job as it is, but suspended: the watchdog then asks for one more checkpoint."""
    if not case.connected or case.job is None or case.taken:
        return ()
    return (Submit(msgspec.structs.replace(policy_of(case.job), suspend=True)),)
