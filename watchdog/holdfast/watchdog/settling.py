"""Level-triggered: compare what the job should be running with what it is running, and show the difference.

Called after every event. Whatever led here, the outcome depends on the state alone, so it is the same after a
restart, after a lost tick, and when the same event comes twice.
"""

from heapq import nsmallest

import msgspec

from holdfast.api.incident import Action, IncidentState, Rung
from holdfast.api.plan import Plan
from holdfast.api.policy import Policy
from holdfast.api.round import Closed, Entry, Idle, Round
from holdfast.api.selftest import TestLevel
from holdfast.api.status import JobPhase
from holdfast.watchdog.absence import is_given_up, next_release, released
from holdfast.watchdog.casebook import act, close
from holdfast.watchdog.departure import may_part, next_departure, part
from holdfast.watchdog.effect import Effect, Publish, Show
from holdfast.watchdog.formation import GROWTH, Shortage, can_grow, form, legal_size, next_number
from holdfast.watchdog.misfit import misfits_in_words, refit
from holdfast.watchdog.pacing import next_due, pace
from holdfast.watchdog.probation import ended, next_end
from holdfast.watchdog.rewinding import give_up
from holdfast.watchdog.saving import ask_for_checkpoint, conclude
from holdfast.watchdog.state import JobState, Recovery, Rewind, RewindAsked
from holdfast.watchdog.step import Reason, Step, changed, stay
from holdfast.watchdog.trial import (
    ask,
    being_tested,
    due,
    is_anybody_tested,
    next_trial,
    overdue,
    waiting,
    without_members,
)
from holdfast.watchdog.unseen import next_closing, settled_down
from holdfast.watchdog.wording import in_words

# At each gap; however large the job, its next round is not kept waiting for the requests.
ASKED_MAX = 64
# How long a light test takes at most: in a shorter pause it would only be ended.
LIGHT_S = 60.0

ENDED = (JobPhase.SUCCEEDED, JobPhase.FAILED)
KEPT_RESTARTS = 1024


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
        .then(lambda after: ended(after, now))
        .then(lambda after: due(after, now))
        .then(lambda after: part(after, now))
        .then(lambda after: _suspension(after, now))
        .then(lambda after: _growth(after, now))
        .then(lambda after: pace(after, now))
        .then(lambda after: _next_round(after, policy, now).then(lambda formed: used(after, formed, policy, now)))
        .then(lambda after: plan(after, policy, now))
    )


def next_wakeup(state: JobState) -> float | None:
    """When a `ClockTicked` could change something, or None."""
    if state.policy is None or state.phase in ENDED:
        return None
    wakeups = (
        next_departure(state),
        next_release(state),
        _next_round_at(state, state.policy),
        _growth_at(state),
        next_trial(state),
        next_end(state),
        next_due(state),
        next_closing(state),
    )
    return min((each for each in wakeups if each is not None), default=None)


def _next_round_at(state: JobState, policy: Policy) -> float | None:
    """When the round that is owed may be formed."""
    if state.held or _waits_for_members(state):
        return None  # they come, are lost, or their tests are given up: all of that is told
    if state.recovery is not None and state.recovery.not_before:
        return state.recovery.not_before
    if (at := _rest_is_known_at(state)) is not None:
        return at
    enough = (
        _forming_anew(state) and legal_size(policy, state.eligible_count()) > 0 and not is_anybody_tested(state)
    )
    return _graced_until(state, policy) if enough else None


# Members join one after the other: each has the others wait a little longer, but not for ever.
GRACES_MAX = 6


def _graced_until(state: JobState, policy: Policy) -> float | None:
    """Until when the rest of the members is waited for; None before the first has joined."""
    if state.forming_since is None:
        return None
    first = next(iter(state.members), None)
    longest = GRACES_MAX * policy.form_grace_s
    return min(state.forming_since + policy.form_grace_s, (first.joined_at if first else 0.0) + longest)


# What takes many members takes them within moments: the first makes a round at once, the others one together.
GATHER_S = 0.25


def _rest_is_known_at(state: JobState) -> float | None:
    """When a fault that broke a round no sooner than it was shown is healed; None when nothing waits for that."""
    recovery = state.recovery
    if recovery is None or not recovery.incidents or state.progressed or not isinstance(state.desired, Round):
        return None
    return state.round_shown_at + GATHER_S


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
    if state.rewind is not None and state.rewind.round is None:
        return stay(state)  # what the round has trained is to be given up
    if not all(member and member.finished_round == state.round.number for member in state.ranked_members()):
        return stay(state)
    state, closed = close(state, IncidentState.RECOVERED, now, "the job finished")
    desired = Closed(state.job, next_number(state), succeeded=True, reason="every rank finished")
    after = changed(state, phase=JobPhase.SUCCEEDED, reason="every rank finished", desired=desired, recovery=None)
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
        fields = {"phase": JobPhase.SUSPENDED, "reason": says, "recovery": None, "forming_since": None}
        return _idle(changed(step.state, **fields), says).prefixed(closed + step.effects)
    if not state.held and state.phase is JobPhase.SUSPENDED:
        after = changed(state, phase=JobPhase.RECOVERING, recovery=Recovery(reason="resumed on request"))
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


def _next_round(state: JobState, policy: Policy, now: float) -> Step:
    """Form the round that is owed as soon as it may and can be formed; until then nothing runs."""
    if state.phase in ENDED or state.held:
        return stay(state)
    recovery = state.recovery or (Recovery("first round", Entry.RESPAWN) if state.round is None else None)
    if recovery is None:
        return stay(state)
    if recovery.not_before and now >= recovery.not_before:
        # Else it would go on to be a time to wake at while something else is waited for.
        recovery = msgspec.structs.replace(recovery, not_before=0.0)
        state = changed(state, recovery=recovery)
    if (unheard := _unheard(state)) is not None:
        return _wait(state, f"waiting to hear of {unheard} after the watchdog's restart")
    if (untested := waiting(state)) is not None:
        return _wait(state, untested)
    if now < recovery.not_before:
        return _wait(state, f"backing off for {recovery.not_before - now:.0f} s: {recovery.reason}")
    if (at := _rest_is_known_at(state)) is not None and now < at:
        return stay(state)
    if _forming_anew(state) and not _may_form(state, policy, now):
        return _waiting_to_form(state, policy)
    formed = form(state, policy, recovery)
    if isinstance(formed, Shortage):
        says = f"waiting for members: {formed.present} of at least {formed.needed} are there"
        return _wait(state, _with_obstacles(state, says))
    return _show(state, recovery, formed, now)


def _unheard(state: JobState) -> str | None:
    """The members with ranks of which nothing is known since the restart, in words; None when there is none."""
    names = state.members.unheard() & state.ranked()
    return in_words(names) if names else None


def _waits_for_members(state: JobState) -> bool:
    """Whether a round is owed that waits for members with ranks, whatever the time."""
    return state.recovery is not None and (_unheard(state) is not None or waiting(state) is not None)


def _forming_anew(state: JobState) -> bool:
    """Whether nobody is left of a round before: the first round, or the first after everybody went."""
    return state.round is None or (state.recovery is not None and not state.has_survivors())


def _may_form(state: JobState, policy: Policy, now: float) -> bool:
    """A round formed anew waits for the maximum, and makes do with the minimum only after the grace."""
    present = state.eligible_count()
    if legal_size(policy, present) == 0:
        return False
    full = legal_size(policy, present) == legal_size(policy, policy.nodes_max)
    if not full and is_anybody_tested(state):
        return False  # they are there, and answer or are waited for no longer
    until = _graced_until(state, policy)
    return full or (until is not None and now >= until)


def _waiting_to_form(state: JobState, policy: Policy) -> Step:
    present = state.eligible_count()
    enough = legal_size(policy, present) > 0
    phase = JobPhase.FORMING if enough else JobPhase.PENDING
    says = f"{present} of {policy.nodes_max} members joined"
    if is_anybody_tested(state):
        testing = being_tested(state)
        phase = JobPhase.PREFLIGHT
        says = f"{present} of {policy.nodes_max} members are ready; waiting for the self-tests of {testing}"
    says = _with_obstacles(state, says)
    if (state.phase, state.reason) == (phase, says):
        return stay(state)
    return _idle(changed(state, phase=phase, reason=says), says)


OBSTACLES_TOLD = 4


def _with_obstacles(state: JobState, says: str) -> str:
    """What is waited for, and what is known to be in its way."""
    away = [f"node {order.node} gets no ranks ({order.reason})" for order in state.avoided[:OBSTACLES_TOLD]]
    return "; ".join(each for each in (says, *away, misfits_in_words(state), state.pending) if each)


def _wait(state: JobState, says: str) -> Step:
    """Nothing may run now: the workers of the broken round leave it, the launchers stay warm."""
    after = changed(state, phase=JobPhase.RECOVERING, reason=says)
    return _idle(after, says)


def _idle(state: JobState, says: str) -> Step:
    if isinstance(state.desired, Idle):
        return Step(state, (), Reason("waiting", says))
    desired = Idle(state.job, next_number(state), says)
    return Step(changed(state, desired=desired), (Show(desired),), Reason("waiting", says))


def _show(state: JobState, recovery: Recovery, formed: Round, now: float) -> Step:
    """Show the new round to the launchers and write it into the incidents that it heals."""
    before = len(state.round.ranks) if state.round else 0
    effects: tuple[Effect, ...] = ()
    if recovery.incidents and recovery.rung is not None:
        shrunk = len(formed.ranks) < before
        rung = max(recovery.rung, Rung.SHRINK) if shrunk else recovery.rung
        size = f"{len(formed.ranks)} members, world size {formed.world_size}"
        does = f"round {formed.number}: {size}{_changes(state, formed)}"
        action = Action(rung, now, does, recovery.reason, round=formed.number)
        state, effects = act(state, recovery.incidents, action)
    after = changed(
        state,
        round=formed,
        desired=formed,
        rewind=_told(state.rewind, formed),
        asked=_told_asked(state.asked, formed),
        recovery=None,
        progressed=False,
        step=None,
        restored_step=None,
        signed_at=None,
        phase=JobPhase.RECOVERING if before else JobPhase.FORMING,
        reason=formed.reason,
        forming_since=None,
        round_shown_at=now,
        ledger=state.ledger.begin(now),
        restarts=(*state.restarts, now)[-KEPT_RESTARTS:] if recovery.incidents else state.restarts,
        restart_count=state.restart_count + bool(recovery.incidents),
    )
    return Step(after, (*effects, Show(formed)), Reason("round", f"round {formed.number}: {formed.reason}"))


def _told(rewind: Rewind | None, formed: Round) -> Rewind | None:
    return Rewind(rewind.restore, formed.number) if rewind is not None and rewind.round is None else rewind


def _told_asked(asked: RewindAsked | None, formed: Round) -> RewindAsked | None:
    if asked is None or asked.round is not None:
        return asked
    return msgspec.structs.replace(asked, round=formed.number)


def _changes(state: JobState, formed: Round) -> str:
    """Which members came and went, in words."""
    old, new = state.ranked(), formed.names
    came, went = new - old, old - new
    parts = [f"{in_words(came)} in" if came else "", f"{in_words(went)} out" if went else ""]
    told = ", ".join(part for part in parts if part)
    return f" ({told})" if told else ""


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


# The plan: what the operator should make true of pods and nodes, as far as it follows from the state.


def plan(state: JobState, policy: Policy, now: float) -> Step:
    """What the operator should make true."""
    if state.phase is JobPhase.SUCCEEDED or state.phase is JobPhase.FAILED:
        return plan_after_end(state)
    known = state.plan
    given_up = is_given_up(state)
    wanted = Plan(
        job=state.job,
        number=known.number if known else 1,
        members=0 if given_up else policy.nodes_max,
        spares=0 if given_up else policy.spares,
        release=() if given_up or policy.observe else released(state, policy, now),
    )
    return _published(state, wanted)


def plan_after_end(state: JobState) -> Step:
    """What is left of it once the job is over: of nodes it goes on to follow the state, of pods it stays."""
    return stay(state) if state.plan is None else _published(state, state.plan)


def _published(state: JobState, wanted: Plan) -> Step:
    """Show `wanted`, with what is known of the nodes, unless it is what is shown already."""
    known = state.plan
    cordon = tuple(order for order in state.avoided if order.incident is not None)
    wanted = msgspec.structs.replace(wanted, avoid=state.avoided, cordon=cordon, returned=state.returned)
    if wanted == known:
        return stay(state)
    if known is not None:
        wanted = msgspec.structs.replace(wanted, number=known.number + 1)
    return Step(changed(state, plan=wanted), (Publish(wanted),), Reason("plan", f"plan {wanted.number}"))
