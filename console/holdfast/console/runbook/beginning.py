"""Checks of a job that does not come to its first step: pods, script, checkpoints, budgets."""

from typing import Final

from holdfast.api.event import PodChanged
from holdfast.api.finding import FindingKind
from holdfast.api.status import JobPhase
from holdfast.console.runbook.answer import Said, fine, hint, named, proved, unknown
from holdfast.console.runbook.byincident import ByIncident, follows
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.known import Known, listed, many, pending
from holdfast.console.runbook.symptom import Symptom

START: Final = Symptom.WILL_NOT_START
WHY = ("why {incident}", "incidents")


def is_refused(known: Known) -> Said:
    """The spec is refused by the operator."""
    if known.phase is None:
        return unknown(known.why_unread("status"))
    if known.phase == JobPhase.INVALID:
        return proved(f"the spec is refused: {known.reason}")
    return fine(f"the spec was taken: the phase is {known.phase}")


def pending_pods(known: Known) -> Said:
    """Pods that the cluster does not start, and what it says of why."""
    if known.journal is None:
        return unknown(known.why_unread("journal"))
    waits = pending(known)
    if waits:
        reasons = listed(sorted({each.reason or "no reason is given" for each in waits}))
        return named(f"{many(len(waits), 'pod')} pending: {reasons}")
    if not known.told(PodChanged):
        return unknown("nobody has told of pods: the operator does not, or there is no cluster")
    return fine("no pod is pending")


def is_out_of_budget(known: Known) -> Said:
    """Evictions or restarts that used up their budget."""
    status, policy = known.status, known.policy
    if status is None:
        return unknown(known.why_unread("status"))
    if policy is None:
        return unknown("the job's spec is not known here, so neither are its budgets")
    if "budget" in status.reason:
        return follows(known, status.reason)
    evictions = (
        f"{status.evictions} evictions ({policy.evictions.count} in {policy.evictions.per_s:.0f} s are allowed)"
    )
    if len(status.avoided_nodes) and len(status.avoided_nodes) >= policy.evictions.count:
        return hint(
            f"{many(len(status.avoided_nodes), 'node')} avoided: {listed(status.avoided_nodes)}; {evictions}"
        )
    return fine(f"{evictions}, {status.restarts} restarts: within the budget")


CHECKS: Final = (
    Check("spec-refused", "The spec is refused", {START: 12}, is_refused, ("status",)),
    Check(
        "pods-pending",
        "The cluster does not start its pods",
        {START: 32},
        pending_pods,
        ("status", "doctor"),
    ),
    Check(
        "script-fails",
        "The script fails by itself",
        {START: 38, Symptom.HUNG: 11},
        ByIncident(
            frozenset({FindingKind.USER_CODE, FindingKind.CRASH_LOOP}),
            "no exception of the script was seen",
            like=lambda each: "OutOfMemory" not in each.cause,
            proves=False,  # that it raised is certain, and what made it raise is not
        ),
        WHY,
        "73 % of tasks fail in their first ten minutes, and 17.3 % of incidents end by a change of code or data: "
        "https://www.usenix.org/conference/nsdi25/presentation/dong, https://arxiv.org/abs/2509.16293, table 1",
    ),
    Check(
        "nothing-to-restore",
        "Checkpoints are there, and none can be used",
        {START: 20},
        ByIncident(frozenset({FindingKind.NOTHING_TO_RESTORE}), "no restore failed for want of a checkpoint"),
        WHY,
        "docs/adr/0113-nobody-starts-over-unasked.md",
    ),
    Check(
        "budget", "The budget of evictions or restarts is used up", {START: 7}, is_out_of_budget, ("incidents",)
    ),
)
