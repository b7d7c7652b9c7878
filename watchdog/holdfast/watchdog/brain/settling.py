"""Level-triggered: compare what the job should be running with what it is running, and show the difference.

Called after every event. Whatever led here, the outcome depends on the state alone, so it is the same after a
restart, after a lost tick, and when the same event comes twice.
"""

from collections.abc import Callable, Sequence
from heapq import nsmallest

from holdfast.api.incident import IncidentState
from holdfast.api.round import Closed, Idle, Round
from holdfast.api.selftest import TAKES_S_MAX, TestLevel
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.departures import may_part, next_departure, part
from holdfast.watchdog.brain.groups import (
    BACK,
    READY,
    is_in_groups,
    may_regroup,
    next_overdue,
    not_ready,
    waits_at_the_door,
)
from holdfast.watchdog.brain.healing import heal
from holdfast.watchdog.brain.history import next_closing, settled_down
from holdfast.watchdog.brain.incidents import close
from holdfast.watchdog.brain.linktests import idle_links_due, next_idle_links
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
    begin,
    next_trial,
    overdue,
    refit,
    spares_due,
    without_members,
)
from holdfast.watchdog.brain.slowness import reckon
from holdfast.watchdog.brain.state import ENDED, JobState, Recovery
from holdfast.watchdog.brain.step import Reason, Show, Step, changed, stay
from holdfast.watchdog.brain.stragglers import arrived, judge, move

# At each gap; however large the job, its next round is not kept waiting for the requests.
ASKED_MAX = 64
# How long a light test takes at most: in a shorter pause it would only be ended.
LIGHT_S = TAKES_S_MAX[TestLevel.LIGHT]


def settle(state: JobState, now: float) -> Step:
    """Everything that follows from the state as it stands."""
    if state.policy is None or state.phase in ENDED:
        over = f"the job is over: {state.reason}"
        return conclude(state, "the job is over").then(give_up, over).then(plan_after_end)
    step = stay(state)
    for follows in CONSEQUENCES:
        step = step.then(follows, now)
    # Asked for each of thousands that answer: who has no ranks any more is looked for only where that changes.
    return step if step.state.desired is state.desired else step.then(begin, now)


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
        next_idle_links(state),
        next_probation_end(state),
        next_due(state),
        next_closing(state),
        next_overdue(state, state.policy),
    )
    return min((each for each in wakeups if each is not None), default=None)


def _forget_gone(state: JobState, now: float) -> Step:
    """Lost members without ranks are forgotten; those with ranks hold their place in the rank order.

    One that has not been heard of since the watchdog started is not lost yet.
    """
    members = state.members
    gone = (members.absent() & members.beyond(state.ranked())) - members.unheard()
    return stay(without_members(state, gone) if gone else state)


def _finish(state: JobState, now: float) -> Step:
    """The job is done when every member of the newest round finished it. A replica group that was let in while the
    others made their last step meets nobody any more, and has nothing to add.
    """
    if state.round is None:
        return stay(state)
    if state.rewind is not None and state.rewind.round is None:
        return stay(state)  # what the round has trained is to be given up
    training, epochs, number = state.round.training, state.round.epochs, state.round.number
    for share, member in zip(state.round.ranks[:training], state.ranked_members(), strict=False):
        if (member is None or member.finished_round != number) and epochs.get(share.member) not in state.came_in:
            return stay(state)
    state, closed = close(state, IncidentState.RECOVERED, now, "the job finished")
    desired = Closed(state.job, next_number(state), succeeded=True, reason="every rank finished")
    after = moved(state, Turn.FINISHED, reason="every rank finished", desired=desired, recovery=None)
    return Step(after, (*closed, Show(desired)), Reason("finished", "every rank finished"))


def _hold(state: JobState, now: float) -> Step:
    """A held job has no round, once the one it had is saved; a resumed one owes itself one."""
    if state.phase in ENDED:
        return stay(state)
    is_suspended = state.phase is JobPhase.SUSPENDED
    if not state.held:
        if not is_suspended:
            return stay(state)
        after = moved(state, Turn.RESUMED, recovery=Recovery(reason="resumed on request"))
        return Step(after, (), Reason("resumed", "resumed on request"))
    # Each of the three has to let it go.
    by_spec = state.policy is not None and state.policy.suspend
    by_queue = state.policy is not None and state.policy.admitted == 0
    who = ["on request"] * state.paused + ["by the job's spec"] * by_spec + ["by the cluster's queue"] * by_queue
    says = f"suspended {' and '.join(who)}"
    if is_suspended:
        by, semicolon, saved = state.reason.partition(";")
        if by == says:
            return stay(state)
        says += semicolon + saved
        return Step(changed(state, reason=says), (), Reason("suspended", says))
    if not may_part(state, now):
        return stay(state)
    state, closed = close(state, IncidentState.RECOVERED, now, "the job was suspended")
    if state.saving is not None and state.saving.saved is not None:
        says += f"; step {state.saving.saved} is saved"
    step = conclude(state, "the job was suspended before it could be saved")
    held = moved(step.state, Turn.HELD, reason=says, recovery=None, forming_since=None)
    return idle(held, says).prefixed(closed + step.effects)


# Newcomers often come one after the other; each growth stops the training for a moment.
GROWTH_PAUSE_S = 30.0


def _growth_at(state: JobState) -> float | None:
    """When a checkpoint is asked for so that newcomers can be taken in, None when nobody waits."""
    if is_in_groups(state):
        return None  # a group comes in without one
    if state.phase is not JobPhase.RUNNING or state.recovery is not None or state.saving is not None or state.held:
        return None
    if state.policy is None or not can_grow(state):
        return None
    return state.round_shown_at + (GROWTH_PAUSE_S if _checkpoints_are_seen(state) else state.policy.form_grace_s)


def _grow(state: JobState, now: float) -> Step:
    """Take in newcomers: with a checkpoint of their own, where this round's script has any."""
    if is_in_groups(state):
        return _regroup(state, now)
    at = _growth_at(state)
    if at is None or now < at:
        return stay(state)
    if _checkpoints_are_seen(state):
        return ask_for_checkpoint(state, GROWTH, now)
    recovery = Recovery(reason=GROWTH)
    return Step(changed(state, recovery=recovery), (), Reason("growth", recovery.reason))


def _regroup(state: JobState, now: float) -> Step:
    """Take in replica groups: those that are ready train, and of members without ranks one more is formed.

    One that is not ready in the time that a job has for its start hangs, or failed without a word.
    """
    if not may_regroup(state) or state.policy is None:
        return stay(state)
    if (slow := not_ready(state, state.policy, now)) is not None:
        return heal(state, slow, now)
    if state.recovery is not None:
        return stay(state)
    reason = READY if waits_at_the_door(state) else BACK if can_grow(state) else None
    if reason is None:
        return stay(state)
    return Step(changed(state, recovery=Recovery(reason)), (), Reason("replica groups", reason))


def _checkpoints_are_seen(state: JobState) -> bool:
    """Whether this round's script tells of its checkpoints (it uses holdfast.checkpoint)."""
    return state.can_reenter() and bool(state.checkpoints)


def _show_round(state: JobState, now: float) -> Step:
    """Show the round that is owed, or that there is none. In the gap between a round that broke and the next one
    nobody's devices have anything to do: members that keep their ranks are asked for a light self-test.

    Training goes first: a launcher ends such a test as soon as a round gives its member ranks. So they are asked
    for only where no round can follow at once, of a bounded number of members, those that were tested longest ago
    first.
    """
    before, policy = state.desired, state.policy
    assert policy is not None
    step = settle_round(state, policy, now)
    state, recovery = step.state, step.state.recovery
    begins = isinstance(before, Round) and isinstance(state.desired, Idle)
    if not begins or policy.preflight is None or recovery is None or not recovery.incidents:
        return step
    if now < recovery.not_before < now + LIGHT_S:
        return step
    latest = now - policy.corruption.self_test_every_s
    tested_at, avoided, trials = state.tested_at, state.avoided_nodes, state.trials
    stayed = (state.members.by_name[name] for name in state.members.stayed(state.ranked(), state.round_shown_at))
    free = ((tested_at.get(each.node, 0.0), each) for each in stayed if each.name not in trials)
    due = ((at, each.name) for at, each in free if at <= latest and each.node not in avoided)
    names = tuple(name for _, name in nsmallest(ASKED_MAX, due))
    if not names:
        return step
    why = "the job waits for its next round"
    return step.then(ask, names, TestLevel.LIGHT, why, now, bars=False)


# What follows from a state, in this order: who is there, whether the job is done, what of its members is to be
# tested, whether its round is to be left or to be saved, what its slow ranks came to, and only then which round is
# to run.
CONSEQUENCES: Sequence[Callable[[JobState, float], Step]] = (
    _forget_gone,
    _finish,
    settled_down,
    refit,
    overdue,
    probation_ended,
    spares_due,
    idle_links_due,
    move,
    part,
    _hold,
    _grow,
    pace,
    reckon,
    judge,
    _show_round,
    arrived,
    plan,
)
