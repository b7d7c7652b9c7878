"""Checks of checkpoints that do not come: what is due, what fails, what is slow."""

import itertools
from statistics import median
from typing import Final

from holdfast.api.event import CheckpointRecorded, RestoreReported
from holdfast.console.runbook.answer import Said, fine, hint, named, proved, unknown
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.known import Known, duration
from holdfast.console.runbook.symptom import Symptom

STALE: Final = Symptom.CHECKPOINT_STALE
LATE: Final = 2.0  # times what is usual
NO_STEP_S: Final = 60.0


def never_saved(known: Known) -> Said:
    """Whether anything was ever saved."""
    status = known.status
    if status is None:
        return unknown(known.why_unread("status"))
    if status.last_checkpoint is not None:
        saved = status.last_checkpoint
        return fine(f"step {saved.step} was committed {known.ago(saved.at)}")
    if known.journal is not None and known.is_whole:
        return named("no checkpoint was ever committed: does the script save through holdfast.checkpoint?")
    return unknown("no checkpoint is known, and the journal does not go back to the start")


def cadence(known: Known) -> Said:
    """Whether it is older than its cadence asks for."""
    status = known.status
    if status is None:
        return unknown(known.why_unread("status"))
    saved, every = status.last_checkpoint, status.cadence
    if saved is None:
        return unknown("no checkpoint is known")
    age_s = max(0.0, known.now - saved.at)
    usual_s = every.every_s if every is not None and every.every_s else usual_gap_s(known)
    if usual_s is None:
        return unknown(f"it is {duration(age_s)} old, and nobody knows how often the script saves")
    told = f"it is {duration(age_s)} old, and one is due each {duration(usual_s)}"
    if age_s <= LATE * usual_s:
        return fine(told)
    if every is None:
        return hint(f"{told}, as the script alone decides: set checkpoint.interval")
    return fine(f"{told} ({every.says}): it is not the interval that is wrong")


def usual_gap_s(known: Known) -> float | None:
    """The median time between two commits in the journal; None of less than three."""
    at = [at for at, _ in known.told(CheckpointRecorded)]
    gaps = [after - before for before, after in itertools.pairwise(at)]
    return median(gaps) if len(gaps) > 1 else None


def slow_storage(known: Known) -> Said:
    """Whether commits take longer than they did."""
    if known.journal is None:
        return unknown(known.why_unread("journal"))
    took = [each.took_s for _, each in known.told(CheckpointRecorded) if each.took_s is not None]
    if len(took) < 3:
        return unknown(f"the journal tells of {len(took)} checkpoints how long they took; 3 are needed")
    usual, last = median(took[:-1]), took[-1]
    says = f"the last took {duration(last)}, {duration(usual)} is usual"
    return named(says) if last > LATE * usual and last > 1.0 else fine(says)


def no_steps(known: Known) -> Said:
    """A job that makes no steps saves nothing."""
    status = known.status
    if status is None:
        return unknown(known.why_unread("status"))
    if status.ended_at is not None:
        return fine("the job is over")
    if status.step_age_s is None:
        return named(f"no step is seen: the phase is {status.phase}, {status.reason}")
    limit_s = max(NO_STEP_S, 10 * (status.step_time_s or 0.0))
    says = f"the newest step was complete {duration(status.step_age_s)} ago"
    return named(f"{says}: ask `runbook hung`") if status.step_age_s > limit_s else fine(says)


def broken_rounds(known: Known) -> Said:
    """Rounds that ended before they had saved anything."""
    if known.journal is None:
        return unknown(known.why_unread("journal"))
    commits = known.told(CheckpointRecorded)
    since = commits[-1][0] if commits else 0.0
    begun = [event.round for at, event in known.told(RestoreReported) if at > since]
    if not commits and not known.is_whole:
        return unknown("the journal does not go back to the last commit")
    if len(begun) > 2:
        return named(f"{len(begun)} rounds began since the last commit, and none saved: they end too early")
    return fine(f"{len(begun)} rounds began since the last commit")


def unhealthy(known: Known) -> Said:
    """What is not finite is never gone back to."""
    if known.status is None:
        return unknown(known.why_unread("status"))
    step = known.status.unhealthy_from
    if step is not None:
        return proved(f"what was trained from step {step} on is not finite: no checkpoint of it counts", step=step)
    return fine("no value that is not finite is known")


CHECKS: Final = (
    Check("no-steps", "The job makes no steps, so there is nothing to save", {STALE: 35}, no_steps, ("status",)),
    Check("never-saved", "Nothing was ever saved", {STALE: 20, Symptom.COST: 6}, never_saved, ("status",)),
    Check("cadence", "The script saves too seldom", {STALE: 15}, cadence, ("checkpoint take", "status")),
    Check(
        "slow-storage",
        "Storage takes longer than it did",
        {STALE: 25, Symptom.SLOW: 6},
        slow_storage,
        ("status",),
        "2.1 % of incidents are of file systems: https://arxiv.org/abs/2509.16293, table 1",
    ),
    Check("rounds-too-short", "Rounds end before they have saved", {STALE: 16}, broken_rounds, ("incidents",)),
    Check(
        "unhealthy",
        "What it trains is not finite, so that nothing healthy is saved",
        {STALE: 14},
        unhealthy,
        ("incidents",),
    ),
)
