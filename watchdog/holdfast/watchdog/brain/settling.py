"""Level-triggered: compare what the job should be running with what it is running, and show the difference.

Called after every event. Whatever led here, the outcome depends on the state alone, so it is the same after a
restart, after a lost tick, and when the same event comes twice.
"""

from heapq import nsmallest

from holdfast.api.incident import IncidentState
from holdfast.api.policy import Policy
from holdfast.api.round import Closed, Idle, Round
from holdfast.api.selftest import TestLevel
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.departures import may_part, next_departure, part
from holdfast.watchdog.brain.history import next_closing, settled_down
from holdfast.watchdog.brain.incidents import close
from holdfast.watchdog.brain.nodes import next_probation_end, probation_ended
from holdfast.watchdog.brain.phases import Turn, moved
from holdfast.watchdog.brain.plan import next_release, plan, plan_after_end
from holdfast.watchdog.brain.rewinds import give_up
from holdfast.watchdog.brain.rounds import (
    GROWTH,
    can_grow,
    idle,
    next_number,
    next_round_at,
    settle_round,
)
from holdfast.watchdog.brain.saves import ask_for_checkpoint, conclude, next_due, pace
from holdfast.watchdog.brain.selftests import (
    ask,
    next_trial,
    overdue,
    refit,
    spares_due,
    without_members,
)
from holdfast.watchdog.brain.state import ENDED, JobState, Recovery
from holdfast.watchdog.brain.step import Reason, Show, Step, changed, stay

# At each gap; however large the job, its next round is not kept waiting for the requests.
ASKED_MAX = 64
# How long a light test takes at most: in a shorter pause it would only be ended.
LIGHT_S = 60.0


def settle(state: JobState, now: float) -> Step:
    """Everything that follows from the state as it stands."""
    if state.policy is None or state.phase in ENDED:
        over = f"the job is over: {state.reason}"
        return conclude(state, "the job is over").then(lambda after: give_up(after, over)).then(plan_after_end)
    policy = state.policy
    return (
        stay(_without_gone(state))
        .then(lambda after: _success(after, now))
        .then(lambda after: settled_down(after, now))
        .then(lambda after: refit(after, now))
        .then(lambda after: overdue(after, now))
        .then(lambda after: probation_ended(after, now))
        .then(lambda after: spares_due(after, now))
        .then(lambda after: part(after, now))
        .then(lambda after: _suspension(after, now))
        .then(lambda after: _growth(after, now))
        .then(lambda after: pace(after, now))
        .then(lambda after: settle_round(after, policy, now).then(lambda formed: used(after, formed, policy, now)))
        .then(lambda after: plan(after, policy, now))
    )


def next_wakeup(state: JobState) -> float | None:
    """When a `ClockTicked` could change something, or None."""
    if state.policy is None or state.phase in ENDED:
        return None
    wakeups = (
        next_departure(state),
        next_release(state),
        next_round_at(state, state.policy),
        _growth_at(state),
        next_trial(state),
        next_probation_end(state),
        next_due(state),
        next_closing(state),
    )
    return min((each for each in wakeups if each is not None), default=None)


def _without_gone(state: JobState) -> JobState:
    """Lost members without ranks are forgotten; those with ranks hold their place in the rank order.

    One that has not been heard of since the watchdog started is not lost yet.
    """
    members = state.members
    gone = (members.absent() & members.beyond(state.ranked())) - members.unheard()
    return without_members(state, gone) if gone else state


def _success(state: JobState, now: float) -> Step:
    """The job is done when every member of the newest round finished it."""
    if state.round is None or state.phase in ENDED:
        return stay(state)
    if not all(member and member.finished_round == state.round.number for member in state.ranked_members()):
        return stay(state)
    state, closed = close(state, IncidentState.RECOVERED, now, "the job finished")
    desired = Closed(state.job, next_number(state), succeeded=True, reason="every rank finished")
    after = moved(state, Turn.FINISHED, reason="every rank finished", desired=desired, recovery=None)
    return Step(after, (*closed, Show(desired)), Reason("finished", "every rank finished"))


def _suspension(state: JobState, now: float) -> Step:
    """A held job has no round, once the one it had is saved; a resumed one owes itself one."""
    if state.phase in ENDED:
        return stay(state)
    if state.held and state.phase is not JobPhase.SUSPENDED and may_part(state, now):
        state, closed = close(state, IncidentState.RECOVERED, now, "the job was suspended")
        says = _suspended_by(state)
        if state.saving is not None and state.saving.saved is not None:
            says += f"; step {state.saving.saved} is saved"
        step = conclude(state, "the job was suspended before it could be saved")
        held = moved(step.state, Turn.HELD, reason=says, recovery=None, forming_since=None)
        return idle(held, says).prefixed(closed + step.effects)
    if not state.held and state.phase is JobPhase.SUSPENDED:
        after = moved(state, Turn.RESUMED, recovery=Recovery(reason="resumed on request"))
        return Step(after, (), Reason("resumed", "resumed on request"))
    by, semicolon, saved = state.reason.partition(";")
    if state.phase is JobPhase.SUSPENDED and by != _suspended_by(state):
        says = _suspended_by(state) + semicolon + saved
        return Step(changed(state, reason=says), (), Reason("suspended", says))
    return stay(state)


def _suspended_by(state: JobState) -> str:
    """Who holds the job: each of the two has to let it go."""
    by_spec = state.policy is not None and state.policy.suspend
    if state.paused:
        return "suspended on request and by the job's spec" if by_spec else "suspended on request"
    return "suspended by the job's spec"


# Newcomers often come one after the other; each growth stops the training for a moment.
GROWTH_PAUSE_S = 30.0


def _growth_at(state: JobState) -> float | None:
    """When a checkpoint is asked for so that newcomers can be taken in, None when nobody waits."""
    if state.phase is not JobPhase.RUNNING or state.recovery is not None or state.saving is not None or state.held:
        return None
    if state.policy is None or not can_grow(state):
        return None
    return state.round_shown_at + (GROWTH_PAUSE_S if _checkpoints_are_seen(state) else state.policy.form_grace_s)


def _growth(state: JobState, now: float) -> Step:
    """Take in newcomers: with a checkpoint of their own, where this round's script has any."""
    at = _growth_at(state)
    if at is None or now < at:
        return stay(state)
    if _checkpoints_are_seen(state):
        return ask_for_checkpoint(state, GROWTH, now)
    recovery = Recovery(reason=GROWTH)
    return Step(changed(state, recovery=recovery), (), Reason("growth", recovery.reason))


def _checkpoints_are_seen(state: JobState) -> bool:
    """Whether this round's script tells of its checkpoints (it uses holdfast.checkpoint)."""
    return state.can_reenter() and bool(state.checkpoints)


# Self-tests in the gap between a round that broke and the next one, when nobody's devices have anything to do.
#
# Training goes first: a launcher ends such a test as soon as a round gives its member ranks. So they are asked for
# only where no round can follow at once, of a bounded number of members, those that were tested longest ago first.


def used(before: JobState, state: JobState, policy: Policy, now: float) -> Step:
    """In the turn in which a gap begins: ask members that keep their ranks for a light test."""
    begins = isinstance(before.desired, Round) and isinstance(state.desired, Idle)
    recovery = state.recovery
    if not begins or policy.preflight is None or recovery is None or not _is_long(recovery, now):
        return stay(state)
    latest = now - policy.corruption.self_test_every_s
    tested_at, avoided, trials = state.tested_at, state.avoided_nodes, state.trials
    stayed = (state.members.by_name[name] for name in state.members.stayed(state.ranked(), state.round_shown_at))
    idle = ((tested_at.get(each.node, 0.0), each) for each in stayed if each.name not in trials)
    due = ((at, each.name) for at, each in idle if at <= latest and each.node not in avoided)
    names = tuple(name for _, name in nsmallest(ASKED_MAX, due))
    if not names:
        return stay(state)
    return ask(state, names, TestLevel.LIGHT, "the job waits for its next round", now, bars=False)


def _is_long(recovery: Recovery, now: float) -> bool:
    """Whether a fault's round waits for somebody, or backs off for as long as a test takes."""
    return bool(recovery.incidents) and not now < recovery.not_before < now + LIGHT_S
