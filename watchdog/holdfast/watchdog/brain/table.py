"""The only place that decides.

`advance` is pure: state and event in, state and effects and the reason out; `now` is the watchdog's clock in
seconds and never goes back. A job's life is the table at the end of this file: every pair of phase and event
is a move or a named no-op. Handlers record what happened; `settle` then compares what is wanted with what is
there and shows the launchers the difference. A restart of the watchdog runs through the same code.
"""

from collections.abc import Callable, Mapping

from holdfast.api.event import (
    CheckpointRecorded,
    ClockTicked,
    ConditionOver,
    Event,
    FindingMade,
    FleetReviewed,
    InterventionRequested,
    JobSubmitted,
    MemberDeparting,
    MemberEntered,
    MemberFinished,
    MemberJoined,
    MemberLeft,
    MemberReady,
    MembersEntered,
    MembersReady,
    MemberTested,
    MemberWarmed,
    NodeChanged,
    NodeDeparting,
    NodeReputed,
    PodChanged,
    ReplicasAgreed,
    RestoreReported,
    RoundBegan,
    RoundProgressed,
    RunRecorded,
    StacksTaken,
    StopEnded,
    StorageListed,
    WatchdogStarted,
)
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain import (
    departures,
    healing,
    history,
    longwork,
    members,
    nodes,
    requests,
    rewinds,
    stragglers,
)
from holdfast.watchdog.brain.holding import booked
from holdfast.watchdog.brain.observing import is_observed, observe
from holdfast.watchdog.brain.settling import next_wakeup, settle
from holdfast.watchdog.brain.state import ENDED, JobState
from holdfast.watchdog.brain.step import Step, changed, ignore, stay

__all__ = ["advance", "initial", "next_wakeup", "TRANSITIONS"]

Handler = Callable[[JobState, Event, float], Step]


def initial(job: str) -> JobState:
    """A job nobody has submitted yet."""
    return JobState(job=job)


def advance(state: JobState, event: Event, now: float) -> Step:
    """Apply one event. Total: no event in any phase raises."""
    if state.ledger_of_before is not None:
        state = changed(state, ledger=state.ledger_of_before.carried(), ledger_of_before=None)
    step = observe(state, event, now, _act) if is_observed(state, event) else _act(state, event, now)
    after = step.state
    # The time since the last change of what is held, of what for or of its price goes into the ledger.
    ledger = booked(state, after, event, now)
    if state.phase is not after.phase:
        after = changed(after, ledger=ledger, ended_at=now if after.phase in ENDED else None)
    elif ledger is not after.ledger:
        after = changed(after, ledger=ledger)
    return Step(after, step.effects, step.reason)


def _act(state: JobState, event: Event, now: float) -> Step:
    """What the event and the state after it lead to."""
    handler = TRANSITIONS[state.phase, type(event)]
    return handler(state, event, now).then(settle, now)


def _ignored(why: str) -> Handler:
    def ignored(state: JobState, event: Event, now: float) -> Step:
        return ignore(state, why)

    ignored.__doc__ = f"Ignored: {why}."
    return ignored


def _tick(state: JobState, event: Event, now: float) -> Step:
    """Time has passed."""
    return stay(state)


ALIVE = (JobPhase.PENDING, JobPhase.PREFLIGHT, JobPhase.FORMING, JobPhase.RUNNING, JobPhase.RECOVERING)

MOVES: Mapping[type, Handler] = {
    JobSubmitted: requests.submitted,
    MemberJoined: members.joined,
    MemberWarmed: members.warmed,
    MemberLeft: members.left,
    MemberEntered: members.entered,
    MembersEntered: members.entered_together,
    MemberReady: members.ready,
    MembersReady: members.ready_together,
    RoundBegan: history.began,
    MemberFinished: members.finished,
    CheckpointRecorded: history.checkpointed,
    StorageListed: rewinds.listed,
    RunRecorded: history.described,
    RestoreReported: history.restored,
    RoundProgressed: history.progressed,
    FindingMade: healing.found,
    StacksTaken: longwork.stacks_taken,
    StopEnded: longwork.stop_ended,
    ReplicasAgreed: history.agreed,
    MemberTested: healing.tested,
    NodeDeparting: departures.node_departing,
    ConditionOver: stragglers.condition_over,
    NodeReputed: nodes.reputed,
    FleetReviewed: nodes.fleet_reviewed,
    NodeChanged: members.node_changed,
    PodChanged: members.pod_changed,
    MemberDeparting: departures.departing,
    InterventionRequested: requests.requested,
    ClockTicked: _tick,
    WatchdogStarted: members.watchdog_started,
}

OVER = _ignored("the job is over")
OF_WORKERS = (
    MemberEntered,
    MembersEntered,
    MemberReady,
    MembersReady,
    RoundBegan,
    MemberFinished,
    RoundProgressed,
    ReplicasAgreed,
    StopEnded,
)

TRANSITIONS: Mapping[tuple[JobPhase, type], Handler] = {
    **{(phase, kind): move for phase in ALIVE for kind, move in MOVES.items()},
    # A suspended job keeps its members and hears of nodes, but nothing that its stopped workers did counts.
    **{(JobPhase.SUSPENDED, kind): move for kind, move in MOVES.items()},
    **{(JobPhase.SUSPENDED, kind): _ignored("the job is suspended") for kind in OF_WORKERS},
    **{(phase, kind): OVER for phase in ENDED for kind in MOVES},
    **{(phase, JobSubmitted): requests.resubmitted for phase in ENDED},
    (JobPhase.FAILED, InterventionRequested): requests.requested,  # Restart brings a failed job back
    (JobPhase.SUCCEEDED, InterventionRequested): requests.requested,  # Return alone is done
    (JobPhase.FAILED, FindingMade): healing.lost_after_the_end,
    (JobPhase.FAILED, StacksTaken): longwork.stacks_taken,
    (JobPhase.FAILED, WatchdogStarted): members.watchdog_started,
    (JobPhase.FAILED, MemberJoined): members.joined,
    (JobPhase.FAILED, MemberLeft): members.left,
    # Whose pod or node goes while nothing runs must not be missed after a Restart.
    (JobPhase.FAILED, PodChanged): members.pod_changed,
    (JobPhase.FAILED, NodeChanged): members.node_changed,
}
