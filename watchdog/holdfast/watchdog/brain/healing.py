"""From a finding to the round that is owed: whether it is news, its incident, the rung, and what that changes.

Members that are gone are a finding like any other: whoever had ranks is healed, of the others the operator hears.
So are devices that failed a self-test.
"""

from collections.abc import Sequence

import msgspec

from holdfast.api.event import Event, FindingMade, MemberTested
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.incident import Action, Incident, IncidentState, Rung
from holdfast.api.plan import NodeOrder
from holdfast.api.policy import CordonOn, XidAction
from holdfast.api.round import Closed, Round
from holdfast.api.selftest import TestLevel, Verdict
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.crashloop import is_frozen
from holdfast.watchdog.brain.groups import as_of_now, fell_with_others, is_being_formed, within_groups
from holdfast.watchdog.brain.history import (
    KEPT_WENT_BACK,
    concerns,
    incidents_before,
    is_of_replicas,
    rewound,
    unforgiven,
    unhealthy,
    vouch,
)
from holdfast.watchdog.brain.incidents import (
    KEPT_EVIDENCE,
    absolved,
    act,
    brief_incident,
    close,
    join_finding,
    many_lost,
    open_incident,
    paging,
    same_fault,
    update,
)
from holdfast.watchdog.brain.ladder import Decision, decide, failure_of, may_loop
from holdfast.watchdog.brain.linktests import answered
from holdfast.watchdog.brain.longwork import hung
from holdfast.watchdog.brain.nodes import advanced, avoid, keep_away, take_back
from holdfast.watchdog.brain.phases import Turn, moved
from holdfast.watchdog.brain.plan import missed
from holdfast.watchdog.brain.planned import measured
from holdfast.watchdog.brain.remedies import remedy_of
from holdfast.watchdog.brain.repetition import KEPT_SUSPICIONS, remembered, suspicion
from holdfast.watchdog.brain.reputation import is_of_the_node
from holdfast.watchdog.brain.roster import MemberState
from holdfast.watchdog.brain.rounds import next_number, owe
from holdfast.watchdog.brain.selftests import (
    admitted,
    again,
    ask,
    compared,
    examine,
    misfit_of,
    passed,
    unfit,
    without_members,
    without_misfits,
)
from holdfast.watchdog.brain.state import JobState, Recovery, WentBack
from holdfast.watchdog.brain.step import (
    Dismiss,
    Effect,
    Notify,
    Pardon,
    Reason,
    Show,
    Step,
    TakeStacks,
    changed,
    ignore,
    stay,
)
from holdfast.watchdog.brain.stragglers import suspected
from holdfast.watchdog.brain.unwatched import nobodys
from holdfast.watchdog.wording import in_words

# Of members that are suspect while the job waits; the full test would keep everybody waiting for ten minutes.
LEVEL_OF_SUSPICION = TestLevel.LIGHT
KEPT_FAILURES = 64
# A replica group that fell, and had a process stopped while it was formed anew, is formed at once, once.
FALLS_ALLOWED = 2
FORMED_IN_VAIN_S = 120.0
LASTING = (FindingKind.CONDITION, FindingKind.THERMAL)
NODE_FAULTS = (
    FindingKind.XID,
    FindingKind.GPU_LOST,
    FindingKind.CONDITION,
    FindingKind.THERMAL,
    FindingKind.SELF_TEST,
)
STANDSTILLS = (FindingKind.HANG, FindingKind.COLLECTIVE_FAILED)
# What may be no more than a worker's account of its peer's end.
SYMPTOMS = (FindingKind.COLLECTIVE_FAILED, FindingKind.PROCESS_EXIT)


def found(state: JobState, event: Event, now: float) -> Step:
    """Deal with what was found. Judgements of rounds that are over are evidence at most (fencing)."""
    assert isinstance(event, FindingMade)
    finding, round_ = as_of_now(state.round, event.finding), state.round
    if state.policy is None:
        return ignore(state, "the job is not submitted yet")
    if finding.kind is FindingKind.MEMBER_LOST:
        return lost(state, finding, now)
    # Of a round that is over: it joins its incident while that is open, and changes nothing else, unless the
    # newest round goes on with what was found wrong.
    if finding.round is not None and (round_ is None or finding.round != round_.number):
        if round_ is not None and concerns(state, finding, round_):
            return heal(state, finding, now)
        over = f"round {finding.round} is over"
        for incident in state.open_incidents():
            told_of_it = finding.kind is FindingKind.USER_CODE and _is_symptom(incident)
            alike = incident.culprit.node == finding.subject.node or told_of_it
            if incident.round == finding.round and alike and incident is not many_lost(state):
                return _evidence(state, incident, finding, now, Reason("late evidence", over))
        return ignore(state, over)
    if finding.kind not in NODE_FAULTS:
        if round_ is None or state.phase is JobPhase.SUSPENDED:
            return ignore(state, "no round is running, so nothing of it can fail")
        return heal(state, finding, now)
    # A node that is avoided for what this job found; what others know of one is no proof yet.
    node = finding.subject.node
    if node in state.avoided_nodes and node not in state.reputed:
        known, says = same_fault(state, finding), f"node {node} is avoided already"
        if known is None:
            return ignore(state, says)
        return _evidence(state, known, finding, now, Reason("late evidence", says))
    return heal(state, finding, now)


def _is_symptom(incident: Incident) -> bool:
    return incident.kind in SYMPTOMS and incident.confidence is Confidence.UNKNOWN


def _evidence(state: JobState, incident: Incident, finding: Finding, now: float, reason: Reason) -> Step:
    """The finding joins an incident, and changes nothing else, unless no node had a part in it after all."""
    state, _, effects = _joined(state, incident, finding, now)
    return Step(state, effects, reason)


def _joined(
    state: JobState, known: Incident, finding: Finding, now: float
) -> tuple[JobState, Incident, tuple[Effect, ...]]:
    incident = join_finding(known, finding, now)
    if incident.innocent and not known.innocent:
        state = absolved(state, known)
    state, effects = update(state, incident)
    return state, incident, effects


def lost(state: JobState, finding: Finding, now: float) -> Step:
    """One member is gone, or many at once.

    Who is there is a level, not an event of a round: a loss counts whichever round it was seen in. A launcher that
    was only silent is told so: its connection stands, and it would wait for ever to be shown its part.
    """
    members = ((name, state.member(name)) for name in members_of(finding))
    news = {name for name, member in members if member is None or member.standing is not MemberState.LOST}
    if not news:
        return seen_again(state, finding, now)
    ranked = {name for name in news if state.in_round(name)} if state.phase is not JobPhase.SUSPENDED else set()
    step = stay(state)
    if news - ranked:
        step = rankless_lost(state, _about(finding, news - ranked), now)
    if ranked:
        step = step.then(heal, nobodys(step.state, _about(finding, ranked)), now)
    return step.prefixed((Dismiss(tuple(sorted(news)), finding.cause),))


def _about(finding: Finding, names: set[str]) -> Finding:
    """The finding as far as it is about these members; of one alone, it is that member's loss."""
    if not finding.also:
        return finding
    subjects = tuple(each for each in (finding.subject, *finding.also) if each.member in names)
    if len(subjects) == 1:
        return msgspec.structs.replace(finding, subject=subjects[0], also=(), confidence=Confidence.PROBABLE)
    return msgspec.structs.replace(finding, subject=Subject(finding.subject.job), also=subjects)


def rankless_lost(state: JobState, finding: Finding, now: float) -> Step:
    """Members without ranks went: the operator replaces them, the round does not notice."""
    named = members_of(finding)
    gone = {name for name in named if name in state.members}
    if not gone:
        return ignore(state, f"{in_words(named)} is not a member")
    state = missed(state, sorted(gone), now)
    says = f"{in_words(gone)} ran no ranks: {finding.cause}"
    return Step(without_members(state, gone), (), Reason("member lost", says))


def lost_after_the_end(state: JobState, event: Event, now: float) -> Step:
    """A failed job heals nothing, but a Restart must not count on members that went."""
    assert isinstance(event, FindingMade)
    if event.finding.kind is not FindingKind.MEMBER_LOST:
        return ignore(state, "the job is over")
    told = Dismiss(members_of(event.finding), event.finding.cause)
    return rankless_lost(state, event.finding, now).prefixed((told,))


def seen_again(state: JobState, finding: Finding, now: float) -> Step:
    """One loss that is seen in two ways is one loss: the second is evidence at most."""
    incident = same_fault(state, finding)
    if incident is None:
        # The one of the many that the member was lost with, while it has room for more evidence.
        many, missing = many_lost(state), state.missing.get(finding.subject.member or "")
        is_of_many = many is not None and missing is not None and missing.at >= many.detected_at
        incident = many if is_of_many and many is not None and len(many.evidence) < KEPT_EVIDENCE else None
    known = {each.says for each in incident.evidence} if incident is not None else set()
    if incident is None or {each.says for each in finding.evidence} <= known:
        return ignore(state, f"{in_words(members_of(finding))}: lost already")
    return _evidence(state, incident, finding, now, Reason("evidence", finding.cause))


def heal(state: JobState, finding: Finding, now: float) -> Step:
    """Decide, and do what was decided; the incident tells of it."""
    policy = state.policy
    assert policy is not None
    if finding.kind is FindingKind.STRAGGLER:
        return suspected(state, finding, now)
    if finding.asks is XidAction.WATCH and finding.kind is not FindingKind.USER_CODE:
        if same_fault(state, finding) is not None:
            return seen_again(state, finding, now)
        says = f"{finding.cause} on {finding.subject}: reported, nothing was changed"
        state, _, effects = brief_incident(state, finding, None, IncidentState.RECOVERED, says, now)
        return Step(state, effects, Reason("reported", says))
    if _was_restarted_for(state, finding):
        return ignore(state, f"{finding.cause} on {finding.subject} lasts, a restart since has not mended it")
    if finding.kind is FindingKind.CORRUPTION and is_of_replicas(finding) and not state.comparable:
        return _ask_whether_replicas(state, finding, now)
    state = unhealthy(changed(state, failures=unforgiven(state, finding, now)), finding)
    first = changed(state, failures=()) if fell_with_others(state, finding) else state
    decision = decide(first, policy, finding, now)
    if decision is None:
        return ignore(state, f"{finding.cause} on {finding.subject} asks for no action")
    if decision.evict is None and (healed := _being_healed(state, finding)) is not None:
        reason = Reason("late evidence", f"{healed.id} is being healed already")
        return _evidence(state, healed, finding, now, reason)
    if decision.rung is Rung.SKIP_STEP:
        # The ranks themselves have left the step out, and training goes on.
        action = Action(Rung.SKIP_STEP, now, f"step {finding.step} skipped", decision.reason)
        says = f"step {finding.step} was skipped; training went on"
        state, _, effects = brief_incident(state, finding, action, IncidentState.RECOVERED, says, now)
        return Step(state, effects, Reason("skipped", decision.reason))
    if decision.goes_on or (finding.kind is FindingKind.DIVERGENCE and decision.rung is Rung.PAGE):
        return _ask_without_stopping(state, finding, decision.reason, now)
    state, incident, effects = _noted(state, finding, decision, now)
    if decision.rung is Rung.PAGE:
        ranked = state.phase is not JobPhase.SUSPENDED and _has_ranks(state, finding.subject.node)
        if finding.kind in NODE_FAULTS and not ranked:
            return _ask_about_spare(state, incident, decision, now).prefixed(effects)
        if finding.kind in (FindingKind.CORRUPTION, FindingKind.NON_FINITE):
            state = rewound(state, policy, finding)  # a Restart must not bring back what may be wrong
        return _page(state, incident, decision, now).prefixed(effects)
    state, more = _carry_out(state, finding, decision, incident, now)
    if decision.notifies:
        state, asked = act(state, (incident.id,), paging(decision.reason, now))
        more += (*asked, Notify(incident.id, decision.reason))
    return Step(state, effects + more, Reason(finding.kind.value, decision.reason, decision.guards))


def _was_restarted_for(state: JobState, finding: Finding) -> bool:
    """Whether a restart was asked for what lasts, and came: another one would mend it no better. A round that
    began meanwhile for a reason of its own is no answer to it: nobody would ever hear of the fault.
    """
    if (
        finding.kind not in LASTING
        or finding.asks is not XidAction.RESTART
        or finding.began_at >= state.round_shown_at
    ):
        return False
    fault = (finding.cause, finding.subject.node)
    restarted = (each for each in state.incidents if each.recovered_round is not None)
    return any(
        (each.cause, each.culprit.node) == fault and each.detected_at >= finding.began_at for each in restarted
    )


def _being_healed(state: JobState, finding: Finding) -> Incident | None:
    """The open incident that this fault of a node is part of: it happened before the round meant to heal that one.

    One bad kernel raises an XID on every GPU it runs on; that is one failure, however many report it.
    """
    if finding.kind not in NODE_FAULTS or state.progressed or finding.began_at >= state.round_shown_at:
        return None
    if fell_with_others(state, finding):
        return None  # that round has its replica group train
    alike = (each for each in reversed(state.open_incidents()) if each.cause == finding.cause)
    return same_fault(state, finding) or next(alike, None)


def _noted(
    state: JobState, finding: Finding, decision: Decision, now: float
) -> tuple[JobState, Incident, tuple[Effect, ...]]:
    """The finding's incident, open or joined; and what repetition and follow-the-fault will look at."""
    effects: tuple[Effect, ...]
    if (known := same_fault(state, finding)) is None:
        state, incident, opened = open_incident(state, finding, now)
        effects = (opened,)
        if finding.kind in STANDSTILLS and state.round is not None:  # before the round is ended
            effects += (TakeStacks(incident.id, state.round, finding.subject.member, finding.subject.rank),)
    else:
        state, incident, effects = _joined(state, known, finding, now)
    if finding.kind is FindingKind.NON_FINITE and (vouched := vouch(state)) is not None:
        effects += (vouched,)  # retention must not go by an older word while the round that is not healthy saves
    if decision.amounts_to is not None:
        incident = join_finding(incident, decision.amounts_to, now)
        state, more = update(state, incident)
        effects += more
    members, failures = state.members, state.failures
    if finding.kind is FindingKind.MEMBER_LOST:  # they stop counting as present
        gone = members_of(finding)
        state, members = missed(state, gone, now, incident.id), members.lost(gone)
    if may_loop(finding, decision) and not fell_with_others(state, finding):
        failures = (*failures, failure_of(state, finding, now))
    suspicions = remembered(state, now)
    if before := incidents_before(state, finding):
        # Nor is it held against the node that it was found on first.
        suspicions = tuple(each for each in suspicions if each.incident not in before)
    elif not finding.innocent:
        # The fault is held against the nodes of workers that died with the first one too.
        named = (finding.subject, *(finding.also if finding.kind is FindingKind.PROCESS_EXIT else ()))
        by_node = {each.node: each for each in reversed(named) if each.node is not None}
        suspicions += tuple(
            suspicion(state, finding, by_node[node], now, incident.id) for node in reversed(by_node)
        )
    after = changed(
        state,
        members=members,
        suspicions=suspicions[-KEPT_SUSPICIONS:],
        failures=failures[-KEPT_FAILURES:],
    )
    return hung(after, finding, incident), incident, effects


def _carry_out(
    state: JobState, finding: Finding, decision: Decision, incident: Incident, now: float
) -> tuple[JobState, tuple[Effect, ...]]:
    """Owe the round that the decision calls for, and move nodes in and out of service."""
    policy = state.policy
    assert policy is not None
    effects: tuple[Effect, ...] = ()
    if decision.evict is not None:
        leaving = (decision.evict, *decision.along)
        # A job may leave a node for whatever its spec says, or its own processes say or can bring about: that may
        # be no reason for others, so that the node is kept away from and, without an incident, not cordoned.
        for_all = is_of_the_node(finding.kind, finding.cause) and not finding.own_rule
        named = incident.id if for_all or policy.cordon_on is CordonOn.ANYTHING else None
        for node in leaving:
            gpu = finding.subject.gpu if node == finding.subject.node else None
            state = avoid(state, NodeOrder(node, decision.reason, named, remedy_of(finding), gpu), now)
        does = f"evict node {in_words(leaving)}"
        state, effects = act(state, (incident.id,), Action(decision.rung, now, does, decision.reason))
    if decision.exonerate:
        state = take_back(state, decision.exonerate)
        effects += tuple(Pardon(node, decision.reason) for node in decision.exonerate)
        does = f"return {', '.join(decision.exonerate)}"
        state, more = act(state, (incident.id,), Action(decision.rung, now, does, decision.reason))
        effects += more
    for names, bars in ((decision.tests, True), (decision.tests_later, False)):
        if names:
            asked = ask(state, names, LEVEL_OF_SUSPICION, decision.reason, now, bars=bars)
            state, effects = asked.state, effects + asked.effects
    if decision.rewinds:
        state = rewound(state, policy, finding)
        if finding.kind in (FindingKind.NON_FINITE, FindingKind.DIVERGENCE):
            fault = WentBack(finding.step or 0, now, finding.kind, finding.subject.rank, incident.id)
            state = changed(state, went_back=(*state.went_back, fault)[-KEPT_WENT_BACK:])
    if finding.kind in NODE_FAULTS and not _has_ranks(state, finding.subject.node):
        says = "the node had no ranks; nothing to heal"
        state, more = close(state, IncidentState.RECOVERED, now, says, only=incident.id)
        return state, effects + more
    recovery = Recovery(
        reason=decision.reason,
        entry=decision.entry,
        fresh_ranks=decision.fresh_ranks,
        not_before=now + decision.delay_s if decision.delay_s else 0.0,
        rung=decision.rung,
        incidents=(incident.id,),
        leaves=None if decision.rewinds else (),
    )
    if not decision.rewinds:
        nodes = [each for each in (decision.evict, *decision.along) if each is not None]
        recovery = within_groups(state.round, finding, recovery, nodes)
        if recovery.leaves and state.round is not None and is_being_formed(state.round, recovery.leaves):
            pause_s = _pause_s(state, state.round, finding, recovery.leaves, now)
            not_before = max(recovery.not_before, now + pause_s)
            recovery = msgspec.structs.replace(recovery, not_before=not_before)
    fault_step = state.step if state.progressed else state.fault_step
    return changed(owe(state, recovery), fault_step=fault_step), effects


def _pause_s(state: JobState, round_: Round, finding: Finding, leaves: Sequence[str], now: float) -> float:
    """How long these wait whose replica group fell while it was formed. What the others train meanwhile is no
    progress of its own. But a process that is stopped is no fault of its start: the first time there is no pause.
    """
    assert state.policy is not None
    groups = {round_.group_of(name) for name in leaves}
    members = (None, *(name for name in round_.names if round_.group_of(name) in groups))
    lately = [each for each in state.incidents if each.detected_at > now - FORMED_IN_VAIN_S]
    # That which they are formed again for, and this one.
    is_first = sum(each.culprit.member in members for each in lately) <= FALLS_ALLOWED
    return 0.0 if is_first and is_frozen(finding) else state.policy.restarts.backoff_s


def _page(state: JobState, incident: Incident, decision: Decision, now: float) -> Step:
    """Rung 6: stop changing things, keep state, ask a human."""
    state, acted = act(state, (incident.id,), paging(decision.reason, now))
    state, closed = close(state, IncidentState.PAGED, now, "waiting for a human")
    last_words = incident.error.strip().rpartition("\n")[2]
    said = not last_words or last_words in decision.reason or incident.kind is FindingKind.NOTHING_TO_RESTORE
    says = decision.reason if said else f"{decision.reason}; last error: {last_words}"
    desired = Closed(state.job, next_number(state), succeeded=False, reason=says)
    state = moved(state, Turn.FAILED, reason=says, recovery=None, desired=desired)
    effects: tuple[Effect, ...] = (*acted, *closed, Notify(incident.id, says), Show(desired))
    return Step(state, effects, Reason("page", decision.reason, decision.guards))


def _ask_about_spare(state: JobState, incident: Incident, decision: Decision, now: float) -> Step:
    """A node without ranks that may not be evicted: the job goes on without it, and a human hears of it.

    A fault that names no node is told as well; there is no node to keep away from.
    """
    node, says = incident.culprit.node, "no node is named; waiting for a human"
    if node is not None:
        state = keep_away(state, NodeOrder(node, decision.reason))  # no incident: kept away from, not cordoned
        says = "the node gets no ranks; waiting for a human"
    state, acted = act(state, (incident.id,), paging(decision.reason, now))
    state, closed = close(state, IncidentState.PAGED, now, says, only=incident.id)
    notify = Notify(incident.id, decision.reason)
    return Step(state, (*acted, *closed, notify), Reason("page", decision.reason, decision.guards))


def _ask_whether_replicas(state: JobState, finding: Finding, now: float) -> Step:
    """Ranks that never were equal may not be meant to be: nobody is evicted for that, and a human is asked."""
    says = (
        f"{finding.subject} and its replicas were never seen equal: either one computed wrong from the start, or "
        "the script's ranks hold different parts of the model, which Run.watch(model, part=...) says"
    )
    # Nobody is proved guilty, whatever the vote says: no other job is to hold it against the node.
    return _ask_without_stopping(state, msgspec.structs.replace(finding, confidence=Confidence.UNKNOWN), says, now)


def _ask_without_stopping(state: JobState, finding: Finding, says: str, now: float) -> Step:
    """A human is asked, and the job goes on as it is."""
    state, incident, effects = brief_incident(
        state, finding, paging(says, now), IncidentState.PAGED, "nothing was changed", now
    )
    return Step(state, (*effects, Notify(incident.id, says)), Reason("page", says))


def tested(state: JobState, event: Event, now: float) -> Step:
    """A member answered the test it was asked for."""
    assert isinstance(event, MemberTested)
    trial, member = state.trials.get(event.member), state.member(event.member)
    if trial is None or member is None or (trial.number, trial.level) != (event.number, event.level):
        return ignore(state, f"nobody waits for test {event.number} of {event.member}")
    if trial.links is not None:
        step, links = answered(state, trial, event, now)
        for each in links:
            step = step.then(found, FindingMade(each), now)
        return step
    state = measured(state, member.node, event.checks)
    asked_in = state
    # Devices of one node that differ are Unknown to the node itself; what others of their kind computed may tell.
    state, against, doubted = compared(state, member.node, event.checks)
    if not against and (says := misfit_of(event)) is not None:
        return unfit(state, member, says, now).then(again, doubted, now)
    if event.verdict is Verdict.PASSED:
        state = without_misfits(state, {member.name})
    state = admitted(state, member.name, now)
    failed = [check for check in event.checks if check.verdict is Verdict.FAILED]
    against = [f"{check.check} of {check.device}: {check.says}" for check in failed] + against
    if event.verdict is Verdict.UNKNOWN and not against:
        says = f"{member.name} could not be tested: {event.says or 'no reason given'}"
        # Who is to be trusted again proves it: it is asked once more when the time for this answer is up.
        kept = asked_in if state.is_canary(member.name) else state
        return Step(kept, (), Reason("self-test", says))
    if event.verdict is Verdict.FAILED or against:
        says = "; ".join(against[:8]) or event.says or "failed"
        devices = {check.device for check in failed}
        finding = Finding(
            kind=FindingKind.SELF_TEST,
            subject=Subject(
                state.job, node=member.node, member=member.name, gpu=devices.pop() if len(devices) == 1 else None
            ),
            cause="self-test failed",
            evidence=(Evidence(f"self-test of {member.name}", says, now),),
            confidence=Confidence.CERTAIN,
            began_at=now,
            error=says,
            asks=XidAction.EVICT,
        )
        return found(state, FindingMade(finding), now)
    state = advanced(passed(state, member, now), member.node, now)
    step = Step(state, (), Reason("self-test", f"{member.name} passed: {trial.reason}"))
    if state.is_canary(member.name):
        step = step.then(examine, member.name, now)
    return step.then(again, doubted, now) if doubted else step


def members_of(finding: Finding) -> tuple[str, ...]:
    """Names of the members that the finding is about."""
    named = (each.member for each in (finding.subject, *finding.also))
    return tuple(name for name in named if name is not None)


def _has_ranks(state: JobState, node: str | None) -> bool:
    return state.round is not None and any(share.node == node for share in state.round.ranks)
