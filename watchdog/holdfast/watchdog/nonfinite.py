"""A loss or gradient norm that was not finite: which steps count no more, and when going back is no help.

A step is healthy while no rank's values at it, or at an earlier one of the same history, were known not to be
finite. Going back ends that history: what is trained from there on is judged anew.
"""

from holdfast.api.finding import Finding, FindingKind
from holdfast.api.round import Round
from holdfast.api.status import Checkpoint
from holdfast.watchdog.state import JobState, NonFiniteFault
from holdfast.watchdog.step import changed

# Going back so often within `WINDOW_S` is no progress, whatever was saved in between.
REWINDS_THAT_PAGE = 3
WINDOW_S = 3600.0
KEPT = 16


def unhealthy(state: JobState, finding: Finding) -> JobState:
    """The state that knows of the finding: nothing of its step or later is healthy."""
    if finding.kind is not FindingKind.NON_FINITE or finding.skipped or finding.step is None:
        return state
    known = state.unhealthy_from
    return changed(state, unhealthy_from=finding.step if known is None else min(known, finding.step))


def still_unhealthy(state: JobState, restored: int | None) -> int | None:
    """From which step on the history is not healthy, once a round goes on from the step restored (None:
    afresh).
    """
    known = state.unhealthy_from
    return None if known is None or (restored or 0) < known else known


def is_healthy(state: JobState, checkpoint: Checkpoint) -> bool:
    """Whether no value is known that was not finite at its step or before, in this history."""
    return state.unhealthy_from is None or checkpoint.step < state.unhealthy_from


def went_back(state: JobState, finding: Finding, now: float) -> JobState:
    """The state that remembers what it goes back for."""
    fault = NonFiniteFault(finding.step or 0, now)
    return changed(state, non_finite=(*state.non_finite, fault)[-KEPT:])


def no_help(state: JobState, finding: Finding, now: float) -> str | None:
    """Why going back once more would be no help; None: it may be.

    Each time needs a checkpoint that was saved, and was healthy, beyond the place of the last one: so that going
    back always ends.
    """
    step = finding.step or 0
    if not state.non_finite:
        return None
    before = state.non_finite[-1]
    if not any(before.step < each.step < step for each in state.checkpoints):
        return f"the job went back for the same at step {before.step}, and has saved nothing beyond that since"
    recent = sum(1 for each in state.non_finite if each.at > now - WINDOW_S)
    if recent >= REWINDS_THAT_PAGE:
        return f"the job went back for the same {recent} times within an hour"
    return None


def concerns(state: JobState, finding: Finding, running: Round) -> bool:
    """Whether a fault of a round that is over is in the history that the newest one goes on with.

    A report may come after its round has ended for another reason.
    """
    if finding.kind is not FindingKind.NON_FINITE or finding.skipped or finding.step is None:
        return False
    if state.rewind is not None and state.rewind.restore.step is not None:
        return state.rewind.restore.step >= finding.step
    began = state.restored_step if state.restored_step is not None else running.restore.step
    return began is not None and began >= finding.step
