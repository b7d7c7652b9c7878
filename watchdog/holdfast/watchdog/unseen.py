"""Scripts that publish no steps: what can be said of their rounds, and when their incidents are over.

Nobody can see such a script's first new step, so that no time to recover is told and no ETTR. That all its workers
run is the first thing known of a round; that they run *steadily*, with the first sign of training behind them, is
the best evidence there is that a fault is healed. What came before that sign, importing above all, proves nothing.
"""

from holdfast.api.event import Event, RoundBegan
from holdfast.api.finding import Finding, FindingKind
from holdfast.api.incident import IncidentState
from holdfast.api.status import JobPhase
from holdfast.watchdog.casebook import close
from holdfast.watchdog.detectors.crash_loop import Failure
from holdfast.watchdog.state import JobState
from holdfast.watchdog.step import Reason, Step, changed, ignore, stay

# From the first sign of training on: longer than a script takes to fail at its first batch.
STEADY_S = 10.0
# From the start of a round on, for workers that show no sign: twice the longest imports that were seen (60 s).
SILENT_STEADY_S = 120.0


def began(state: JobState, event: Event, now: float) -> Step:
    """The first worker of the newest round has shown a sign of training."""
    assert isinstance(event, RoundBegan)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"round {event.round} is over")
    if state.signed_at is not None:
        return ignore(state, f"round {event.round} has shown a sign of training before")
    return Step(changed(state, signed_at=now), (), Reason("first sign", f"{event.member} in round {event.round}"))


def entered(state: JobState) -> JobState:
    """The state once every worker of a script that publishes no steps runs in the newest round."""
    assert state.round is not None
    reason = f"running in round {state.round.number}"
    return changed(state, progressed=True, phase=JobPhase.RUNNING, reason=reason)


def runs_unseen(state: JobState) -> bool:
    """Whether every member entered the newest round and nothing was ever said of which steps the script makes."""
    if state.round is None or state.publishes:
        return False
    return all(
        member is not None and member.entered_round == state.round.number and not member.reentrant
        for member in state.ranked_members()
    )


def steady_at(state: JobState) -> float | None:
    """When the newest round, of which no step can be seen, has run for long enough; None for other rounds."""
    if not state.progressed or state.step is not None or state.publishes:
        return None
    if state.signed_at is None:
        return state.round_shown_at + SILENT_STEADY_S
    return state.signed_at + STEADY_S


def next_closing(state: JobState) -> float | None:
    """When open incidents are over by steady running, None when nothing waits for that."""
    broken = state.recovery is not None and bool(state.recovery.incidents)
    return None if broken or not state.open_incidents() else steady_at(state)


def settled_down(state: JobState, now: float) -> Step:
    """Close what the round was meant to heal, once its workers run steadily."""
    at = next_closing(state)
    if at is None or now < at or state.round is None or state.phase is not JobPhase.RUNNING:
        return stay(state)
    says = f"workers run again in round {state.round.number} (the script publishes no steps)"
    state, closed = close(state, IncidentState.RECOVERED, now, says)
    return Step(state, closed, Reason("runs steadily", says))


def unforgiven(state: JobState, finding: Finding, now: float) -> tuple[Failure, ...]:
    """The failures that still count when `finding` comes: running steadily forgives them, as a new step does.

    Not those of the very exception that comes again: a script that fails at one line every few minutes loops.
    """
    at = steady_at(state)
    if at is None or now < at:
        return state.failures
    same = finding.cause if finding.kind is FindingKind.USER_CODE else None
    return tuple(each for each in state.failures if each.cause == same)
