"""Level-triggered: compare what the job should be running with what it is running, and show the difference.

Called after every event. Whatever led here, the outcome depends on the state alone, so it is the same after a
restart, after a lost tick, and when the same event comes twice.
"""

import msgspec

from holdfast.api.incident import Action, IncidentState, Rung
from holdfast.api.plan import Plan
from holdfast.api.policy import Policy
from holdfast.api.round import Closed, Entry, Idle, Round
from holdfast.api.status import JobPhase
from holdfast.watchdog.casebook import act, close
from holdfast.watchdog.effect import Effect, Publish, Show
from holdfast.watchdog.formation import GROWTH, Shortage, can_grow, form, legal_size, next_number
from holdfast.watchdog.state import JobState, Recovery, Standing
from holdfast.watchdog.step import Reason, Step, changed, stay

ENDED = (JobPhase.SUCCEEDED, JobPhase.FAILED)


def settle(state: JobState, now: float) -> Step:
    """Everything that follows from the state as it stands."""
    if state.policy is None or state.phase in ENDED:
        return stay(state)
    policy = state.policy
    return (
        stay(_without_gone(state))
        .then(lambda after: _success(after, now))
        .then(lambda after: _suspension(after, now))
        .then(_growth)
        .then(lambda after: _next_round(after, policy, now))
        .then(lambda after: _plan(after, policy))
    )


def next_wakeup(state: JobState) -> float | None:
    """When a `ClockTicked` could change something, or None."""
    if state.policy is None or state.phase in ENDED or state.paused:
        return None
    if state.recovery is not None and state.recovery.not_before:
        return state.recovery.not_before
    waits = _forming_anew(state) and state.forming_since is not None
    enough = waits and legal_size(state.policy, len(state.eligible())) > 0
    return (state.forming_since or 0.0) + state.policy.form_grace_s if enough else None


def _without_gone(state: JobState) -> JobState:
    """Lost members without ranks are forgotten; those with ranks hold their place in the rank order."""
    ranked = state.ranked()
    kept = tuple(each for each in state.members if each.standing is Standing.PRESENT or each.name in ranked)
    return state if len(kept) == len(state.members) else changed(state, members=kept)


def _success(state: JobState, now: float) -> Step:
    """The job is done when every member of the newest round finished it."""
    if state.round is None or state.phase in ENDED:
        return stay(state)
    if not all(member and member.finished_round == state.round.number for member in state.ranked_members()):
        return stay(state)
    state, closed = close(state, IncidentState.RECOVERED, now, "the job finished")
    desired = Closed(state.job, next_number(state), succeeded=True, reason="every rank finished")
    after = changed(state, phase=JobPhase.SUCCEEDED, reason="every rank finished", desired=desired, recovery=None)
    return Step(after, (*closed, Show(desired)), Reason("finished", "every rank finished"))


def _suspension(state: JobState, now: float) -> Step:
    """A paused job holds no round; a resumed one owes itself one."""
    if state.phase in ENDED:
        return stay(state)
    if state.paused and state.phase is not JobPhase.SUSPENDED:
        state, closed = close(state, IncidentState.RECOVERED, now, "the job was suspended")
        after = changed(state, phase=JobPhase.SUSPENDED, reason="suspended on request", recovery=None)
        return _idle(after, "suspended on request").prefixed(closed)
    if not state.paused and state.phase is JobPhase.SUSPENDED:
        after = changed(state, phase=JobPhase.RECOVERING, recovery=Recovery(reason="resumed on request"))
        return Step(after, (), Reason("resumed", "resumed on request"))
    return stay(state)


def _growth(state: JobState) -> Step:
    """A round whose checkpoints cannot be seen takes newcomers in at once; any other one at its next commit."""
    if state.phase is not JobPhase.RUNNING or state.recovery is not None or not can_grow(state):
        return stay(state)
    if _checkpoints_are_seen(state):
        return stay(state)
    recovery = Recovery(reason=GROWTH)
    return Step(changed(state, recovery=recovery), (), Reason("growth", recovery.reason))


def _checkpoints_are_seen(state: JobState) -> bool:
    """Whether this round's script tells of its checkpoints (it uses holdfast.checkpoint)."""
    reentrant = all(member is not None and member.reentrant for member in state.ranked_members())
    return reentrant and bool(state.checkpoints)


def _next_round(state: JobState, policy: Policy, now: float) -> Step:
    """Form the round that is owed as soon as it may and can be formed; until then nothing runs."""
    if state.phase in ENDED or state.paused:
        return stay(state)
    recovery = state.recovery or (Recovery("first round", Entry.RESPAWN) if state.round is None else None)
    if recovery is None:
        return stay(state)
    ranked = state.ranked()
    unheard = [each.name for each in state.members if each.standing is Standing.UNKNOWN and each.name in ranked]
    if unheard:
        return _wait(state, f"waiting to hear of {', '.join(unheard)} after the watchdog's restart")
    if now < recovery.not_before:
        return _wait(state, f"backing off for {recovery.not_before - now:.0f} s: {recovery.reason}")
    if recovery.not_before:
        recovery = msgspec.structs.replace(recovery, not_before=0.0)
        state = changed(state, recovery=recovery)
    if _forming_anew(state) and not _may_form(state, policy, now):
        return _waiting_to_form(state, policy)
    formed = form(state, policy, recovery)
    if isinstance(formed, Shortage):
        return _wait(state, f"waiting for members: {formed.present} of at least {formed.needed} are there")
    return _show(state, recovery, formed, now)


def _forming_anew(state: JobState) -> bool:
    """Whether nobody is left of a round before: the first round, or the first after everybody went."""
    return state.round is None or (state.recovery is not None and not state.survivors())


def _may_form(state: JobState, policy: Policy, now: float) -> bool:
    """A round formed anew waits for the maximum, and makes do with the minimum only after the grace."""
    present = len(state.eligible())
    if legal_size(policy, present) == 0:
        return False
    full = legal_size(policy, present) == legal_size(policy, policy.nodes_max)
    return full or (state.forming_since is not None and now >= state.forming_since + policy.form_grace_s)


def _waiting_to_form(state: JobState, policy: Policy) -> Step:
    present = len(state.eligible())
    enough = legal_size(policy, present) > 0
    phase = JobPhase.FORMING if enough else JobPhase.PENDING
    says = f"{present} of {policy.nodes_max} members joined"
    if (state.phase, state.reason) == (phase, says):
        return stay(state)
    return _idle(changed(state, phase=phase, reason=says), says)


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
        recovery=None,
        progressed=False,
        step=None,
        restored_step=None,
        phase=JobPhase.RECOVERING if before else JobPhase.FORMING,
        reason=formed.reason,
        forming_since=None,
        round_shown_at=now,
    )
    return Step(after, (*effects, Show(formed)), Reason("round", f"round {formed.number}: {formed.reason}"))


def _changes(state: JobState, formed: Round) -> str:
    """Which members came and went, in words."""
    old = {share.member for share in state.round.ranks} if state.round else set()
    new = {share.member for share in formed.ranks}
    came, went = sorted(new - old), sorted(old - new)
    parts = [f"{', '.join(came)} in" if came else "", f"{', '.join(went)} out" if went else ""]
    told = ", ".join(part for part in parts if part)
    return f" ({told})" if told else ""


def _plan(state: JobState, policy: Policy) -> Step:
    """What the operator should make true."""
    if state.phase is JobPhase.SUCCEEDED or state.phase is JobPhase.FAILED:
        return stay(state)
    known = state.plan
    wanted = Plan(
        job=state.job,
        number=known.number if known else 1,
        members=policy.nodes_max,
        spares=policy.spares,
        avoid=state.avoided,
        cordon=tuple(order for order in state.avoided if order.incident is not None),
        returned=state.returned,
    )
    if wanted == known:
        return stay(state)
    wanted = Plan(
        wanted.job,
        known.number + 1 if known else 1,
        wanted.members,
        wanted.spares,
        wanted.avoid,
        wanted.cordon,
        wanted.returned,
    )
    return Step(changed(state, plan=wanted), (Publish(wanted),), Reason("plan", f"plan {wanted.number}"))
