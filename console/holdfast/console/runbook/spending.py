"""Checks of what a job costs: where its GPU hours went that made no steps."""

from typing import Final

from holdfast.api.event import InterventionRequested
from holdfast.api.intervention import InterventionAction
from holdfast.api.status import JobStatus
from holdfast.console.runbook.answer import Said, fine, hint, named, unknown
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.known import Known, duration
from holdfast.console.runbook.symptom import ETTR_LOW, Symptom

COST: Final = Symptom.COST
LOST_SHARE: Final = 0.05
HOUR_S: Final = 3600.0
WHOLE_NODES: Final = 0.1


def ettr(known: Known) -> Said:
    """The share of the time that made steps which are kept."""
    if known.status is None:
        return unknown(known.why_unread("status"))
    if known.status.ettr is None:
        return unknown("the effective training time is not known: the script tells no steps, or none is seen")
    share = known.status.ettr
    says = f"{share:.0%} of the time since the first node joined made steps that are kept"
    return named(says) if share < ETTR_LOW else fine(says)


def trained_again(known: Known) -> Said:
    """Steps that faults cost."""
    if known.incidents is None:
        return unknown(known.why_unread("incidents"))
    lost = sum(each.lost_steps or 0 for each in known.incidents)
    made = known.status.step if known.status is not None else None
    unknown_of = [
        each.id for each in known.incidents if each.lost_steps is None and each.recovered_round is not None
    ]
    if made is None:
        return unknown("how many steps were made is not known")
    says = f"{lost} steps were trained again, {made} are made"
    worst = max(known.incidents, key=lambda each: each.lost_steps or 0, default=None)
    if lost > LOST_SHARE * max(made, 1):
        return named(f"{says}: save more often", incident=worst.id if worst else None)
    return unknown(f"{says}; what {unknown_of[-1]} cost is not known") if unknown_of else fine(says)


def slowed(known: Known) -> Said:
    """What slow ranks cost."""
    if known.incidents is None:
        return unknown(known.why_unread("incidents"))
    costs = [each for each in known.incidents if each.slowed is not None]
    if not costs:
        return unknown(known.unheard) if known.unheard else fine("no slow rank was found")
    worst = max(costs, key=lambda each: each.slowed.rank_s if each.slowed else 0.0)
    hours = sum(each.slowed.rank_hours for each in costs if each.slowed)
    says = f"slow ranks cost {hours:.3g} rank-hours ({worst.id}: {worst.cause})"
    return named(says, incident=worst.id) if hours >= WHOLE_NODES else hint(says, incident=worst.id)


def idle_spares(known: Known) -> Said:
    """Nodes that wait for a fault."""
    status = known.status
    if status is None or status.members is None:
        return unknown(known.why_unread("status"))
    spares, there = status.members.spares, status.members.there
    share = spares / max(1, spares + there)
    says = f"{spares} of {spares + there} nodes are spares ({share:.0%})"
    return hint(says) if share > WHOLE_NODES else fine(says)


def asked_for(known: Known) -> Said:
    """Rewinds, pauses and restarts that people asked for."""
    if known.journal is None:
        return unknown(known.why_unread("journal"))
    kinds = (
        InterventionAction.REWIND,
        InterventionAction.PAUSE,
        InterventionAction.RESTART,
        InterventionAction.RESIZE,
    )
    asked = [(at, each.request) for at, each in known.told(InterventionRequested) if each.request.action in kinds]
    recent = [(at, request) for at, request in asked if at >= known.since]
    if not recent:
        return (
            fine(f"nobody asked for a rewind, a pause, a restart or another size in {known.span}")
            if (known.is_whole)
            else unknown(f"the journal does not reach back over {known.span}")
        )
    at, last = recent[-1]
    return hint(f"{len(recent)} were asked for, the last {known.ago(at)}: {last.action}, {last.reason}")


def stands(known: Known) -> Said:
    """GPUs that are held while nothing is trained."""
    status = known.status
    if status is None:
        return unknown(known.why_unread("status"))
    if status.ended_at is not None:
        return fine("the job is over and holds nothing")
    if status.step_age_s is None:
        return named(f"no step is seen while {_held(status)} nodes are held: {status.phase}, {status.reason}")
    if status.step_age_s > max(60.0, 10 * (status.step_time_s or 0.0)):
        return named(f"no step for {duration(status.step_age_s)} while {_held(status)} nodes are held")
    return fine("it trains")


def _held(status: JobStatus) -> int:
    return status.members.there + status.members.spares if status.members is not None else 0


CHECKS: Final = (
    Check(
        "ettr",
        "Too little of the time makes steps that are kept",
        {COST: 20},
        ettr,
        ("cost",),
        "above 90 % at 16,384 GPUs: https://arxiv.org/abs/2407.21783, section 3.3.4",
    ),
    Check(
        "trained-again",
        "Steps are trained again after faults",
        {COST: 26},
        trained_again,
        ("why {incident}", "incidents"),
        "half an interval a fault: https://doi.org/10.1145/361147.361115",
    ),
    Check(
        "slow-ranks",
        "All wait for slow ranks",
        {COST: 24},
        slowed,
        ("why {incident}", "incidents"),
        "10.4 % of GPU hours: https://arxiv.org/abs/2505.05713",
    ),
    Check("stands-still", "Nodes are held while nothing is trained", {COST: 22}, stands, ("status",)),
    Check("spares", "Many nodes are spares", {COST: 8}, idle_spares, ("cost",)),
    Check("asked-for", "Somebody asked for rewinds, pauses or restarts", {COST: 9}, asked_for, ("journal",)),
)
