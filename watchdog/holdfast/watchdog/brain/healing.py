"""A detector judged: whether that is news, of which round, and who is to deal with it.

Members that are gone: whoever had ranks is healed, of the others the operator hears.

From a finding to the round that is owed: open or join the incident, take a rung, record what it changes.

What members answer about their devices, and what other jobs know of a node: who may have ranks."""

import msgspec

from holdfast.api.event import Event, FindingMade, MemberTested
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.incident import Action, Incident, IncidentState, Rung
from holdfast.api.plan import NodeOrder
from holdfast.api.policy import CordonOn, XidAction
from holdfast.api.round import Closed
from holdfast.api.selftest import TestLevel, Verdict
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.history import (
    concerns,
    is_of_replicas,
    rewound,
    unforgiven,
    unhealthy,
    vouch,
    went_back,
)
from holdfast.watchdog.brain.incidents import (
    KEPT_EVIDENCE,
    act,
    close,
    join_finding,
    many_lost,
    open_incident,
    same_fault,
    update,
)
from holdfast.watchdog.brain.ladder import MEMORY_S, Decision, decide, failure_of, fault_class, may_loop
from holdfast.watchdog.brain.nodes import advanced, avoid, keep_away, take_back
from holdfast.watchdog.brain.phases import Turn, moved
from holdfast.watchdog.brain.plan import missed
from holdfast.watchdog.brain.roster import Member, Standing
from holdfast.watchdog.brain.rounds import next_number, owe
from holdfast.watchdog.brain.selftests import (
    admitted,
    again,
    ask,
    awaited_test,
    compared,
    examine,
    failed_checks,
    misfit_of,
    not_asked,
    passed,
    unfit,
    without_members,
    without_misfits,
)
from holdfast.watchdog.brain.state import JobState, Recovery, Suspicion
from holdfast.watchdog.brain.step import Dismiss, Effect, Notify, Pardon, Reason, Show, Step, changed, ignore, stay
from holdfast.watchdog.sensed import is_of_the_node
from holdfast.watchdog.wording import in_words


def found(state: JobState, event: Event, now: float) -> Step:
    """Deal with what was found. Judgements of rounds that are over are evidence at most (fencing)."""
    assert isinstance(event, FindingMade)
    finding = event.finding
    current = state.round.number if state.round else None
    if state.policy is None:
        return ignore(state, "the job is not submitted yet")
    if finding.kind is FindingKind.MEMBER_LOST:
        return lost(state, finding, now)
    if finding.round is not None and finding.round != current:
        if state.round is not None and concerns(state, finding, state.round):
            return heal(state, finding, now)
        return _late(state, finding, now)
    if finding.kind not in NODE_FAULTS and (state.phase is JobPhase.SUSPENDED or current is None):
        return ignore(state, "no round is running, so nothing of it can fail")
    if finding.kind in NODE_FAULTS and _is_known_bad(state, finding.subject.node):
        return _known_bad(state, finding, now)
    return heal(state, finding, now)


def _late(state: JobState, finding: Finding, now: float) -> Step:
    """A judgement about a round that is over: joins its incident while that is open, changes nothing else."""
    many = many_lost(state)
    for incident in state.open_incidents():
        same_round = incident.round == finding.round
        alike = same_round and incident.culprit.node == finding.subject.node
        if (alike or (same_round and _made_a_victim(finding, incident))) and incident is not many:
            state, effects = update(state, join_finding(incident, finding, now))
            return Step(state, effects, Reason("late evidence", f"round {finding.round} is over"))
    return ignore(state, f"round {finding.round} is over")


def _made_a_victim(finding: Finding, incident: Incident) -> bool:
    """Whether an exception of the script explains the incident: a worker that only told of its peer's end."""
    symptoms = (FindingKind.COLLECTIVE_FAILED, FindingKind.PROCESS_EXIT)
    is_symptom = incident.kind in symptoms and incident.confidence is Confidence.UNKNOWN
    return finding.kind is FindingKind.USER_CODE and is_symptom


def _is_known_bad(state: JobState, node: str | None) -> bool:
    """Whether the node is avoided for what this job found; what others know of it is no proof yet."""
    return node in state.avoided_nodes and node not in state.reputed


def _known_bad(state: JobState, finding: Finding, now: float) -> Step:
    """More bad news of a node that is already avoided."""
    incident = same_fault(state, finding)
    if incident is None:
        return ignore(state, f"node {finding.subject.node} is avoided already")
    state, effects = update(state, join_finding(incident, finding, now))
    return Step(state, effects, Reason("late evidence", f"node {finding.subject.node} is avoided already"))


def lost(state: JobState, finding: Finding, now: float) -> Step:
    """One member is gone, or many at once.

    Who is there is a level, not an event of a round: a loss counts whichever round it was seen in. A launcher that
    was only silent is told so: its connection stands, and it would wait for ever to be shown its part.
    """
    named = members_of(finding)
    members = ((name, state.member(name)) for name in named)
    news = {name for name, member in members if member is None or member.standing is not Standing.LOST}
    if not news:
        return seen_again(state, finding, now)
    ranked = {name for name in news if state.in_round(name)} if state.phase is not JobPhase.SUSPENDED else set()
    step = rankless_lost(state, _about(finding, news - ranked), now) if news - ranked else stay(state)
    step = step.then(lambda after: heal(after, _about(finding, ranked), now)) if ranked else step
    return step.prefixed((Dismiss(tuple(sorted(news)), finding.cause),))


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


def _about(finding: Finding, names: set[str]) -> Finding:
    """The finding as far as it is about these members; of one alone, it is that member's loss."""
    if not finding.also:
        return finding
    subjects = tuple(each for each in (finding.subject, *finding.also) if each.member in names)
    if len(subjects) == 1:
        return msgspec.structs.replace(finding, subject=subjects[0], also=(), confidence=Confidence.PROBABLE)
    return msgspec.structs.replace(finding, subject=Subject(finding.subject.job), also=subjects)


# Of members that are suspect while the job waits; the full test would keep everybody waiting for ten minutes.
LEVEL_OF_SUSPICION = TestLevel.LIGHT
KEPT_FAILURES = 64
KEPT_SUSPICIONS = 256
LASTING = (FindingKind.CONDITION, FindingKind.THERMAL)
NODE_FAULTS = (
    FindingKind.XID,
    FindingKind.GPU_LOST,
    FindingKind.CONDITION,
    FindingKind.THERMAL,
    FindingKind.SELF_TEST,
)


def seen_again(state: JobState, finding: Finding, now: float) -> Step:
    """One loss that is seen in two ways is one loss: the second is evidence at most."""
    incident = same_fault(state, finding) or _lost_among_many(state, finding)
    known = {each.says for each in incident.evidence} if incident is not None else set()
    if incident is None or {each.says for each in finding.evidence} <= known:
        return ignore(state, f"{in_words(members_of(finding))}: lost already")
    state, effects = update(state, join_finding(incident, finding, now))
    return Step(state, effects, Reason("evidence", finding.cause))


def _lost_among_many(state: JobState, finding: Finding) -> Incident | None:
    """The open incident of the many that the member was lost with, while it has room for more evidence."""
    incident, lost = many_lost(state), state.missing.get(finding.subject.member or "")
    if incident is None or lost is None or len(incident.evidence) >= KEPT_EVIDENCE:
        return None
    return incident if lost.at >= incident.detected_at else None


def heal(state: JobState, finding: Finding, now: float) -> Step:
    """Open or join the incident and decide."""
    policy = state.policy
    assert policy is not None
    if finding.asks is XidAction.WATCH:
        return _report(state, finding, now)
    if finding.kind in LASTING and finding.asks is XidAction.RESTART and finding.began_at < state.round_shown_at:
        return ignore(state, f"{finding.cause} on {finding.subject} lasts, a restart since has not mended it")
    if finding.kind is FindingKind.CORRUPTION and is_of_replicas(finding) and not state.comparable:
        return _ask_whether_replicas(state, finding, now)
    if (failures := unforgiven(state, finding, now)) != state.failures:
        state = changed(state, failures=failures)
    state = unhealthy(state, finding)
    decision = decide(state, policy, finding, now)
    if decision is None:
        return ignore(state, f"{finding.cause} on {finding.subject} asks for no action")
    if decision.evict is None and (healed := _already_healed(state, finding)) is not None:
        state, effects = update(state, join_finding(healed, finding, now))
        return Step(state, effects, Reason("late evidence", f"{healed.id} is being healed already"))
    if decision.rung is Rung.SKIP_STEP:
        return _skip(state, finding, decision, now)
    state, incident, effects = _case(state, finding, now)
    effects += _told_rank_zero(state, finding)
    if decision.amounts_to is not None:
        incident = join_finding(incident, decision.amounts_to, now)
        state, more = update(state, incident)
        effects += more
    state = _remember(state, finding, decision, incident, now)
    if decision.rung is Rung.PAGE and finding.kind in NODE_FAULTS and not _disturbs(state, finding):
        return _ask_about_spare(state, incident, decision, now).prefixed(effects)
    if decision.rung is Rung.PAGE:
        if finding.kind in (FindingKind.CORRUPTION, FindingKind.NON_FINITE):
            state = rewound(state, policy, finding)  # a Restart must not bring back what may be wrong
        return page(state, incident, decision, now).prefixed(effects)
    state, more = _carry_out(state, finding, decision, incident, now)
    if decision.notifies:
        more += (Notify(incident.id, decision.reason),)
    return Step(state, effects + more, Reason(finding.kind.value, decision.reason, decision.guards))


def _report(state: JobState, finding: Finding, now: float) -> Step:
    """Somebody should know, and nothing is to be done: an incident that is over as soon as it is written."""
    if same_fault(state, finding) is not None:
        return seen_again(state, finding, now)
    state, incident, opened = open_incident(state, finding, now)
    says = f"{finding.cause} on {finding.subject}: reported, nothing was changed"
    state, closed = close(state, IncidentState.RECOVERED, now, says, only=incident.id)
    return Step(state, (opened, *closed), Reason("reported", says))


def _skip(state: JobState, finding: Finding, decision: Decision, now: float) -> Step:
    """Rung 0: the ranks themselves have left the step out, and training goes on; an incident tells of it."""
    state, incident, opened = open_incident(state, finding, now)
    action = Action(Rung.SKIP_STEP, now, f"step {finding.step} skipped", decision.reason)
    state, acted = act(state, (incident.id,), action)
    says = f"step {finding.step} was skipped; training went on"
    state, closed = close(state, IncidentState.RECOVERED, now, says, only=incident.id)
    return Step(state, (opened, *acted, *closed), Reason("skipped", decision.reason))


def _told_rank_zero(state: JobState, finding: Finding) -> tuple[Effect, ...]:
    """Retention must not go by an older word while the round that is not healthy still saves."""
    vouched = vouch(state) if finding.kind is FindingKind.NON_FINITE else None
    return (vouched,) if vouched is not None else ()


def _ask_whether_replicas(state: JobState, finding: Finding, now: float) -> Step:
    """Ranks that never were equal may not be meant to be: nobody is evicted for that, and a human is asked."""
    says = (
        f"{finding.subject} and its replicas were never seen equal: either one computed wrong from the start, or "
        "the script's ranks hold different parts of the model, which Run.watch(model, part=...) says"
    )
    # Nobody is proved guilty, whatever the vote says: no other job is to hold it against the node.
    doubted = msgspec.structs.replace(finding, confidence=Confidence.UNKNOWN)
    state, incident, opened = open_incident(state, doubted, now)
    action = Action(Rung.PAGE, now, f"paged: {says}", says)
    state, acted = act(state, (incident.id,), action)
    state, closed = close(state, IncidentState.PAGED, now, "nothing was changed", only=incident.id)
    return Step(state, (opened, *acted, *closed, Notify(incident.id, says)), Reason("page", says))


def _already_healed(state: JobState, finding: Finding) -> Incident | None:
    """The open incident that this fault of a node is part of: it happened before the round meant to heal that one.

    One bad kernel raises an XID on every GPU it runs on; that is one failure, however many report it.
    """
    if finding.kind not in NODE_FAULTS or state.progressed or finding.began_at >= state.round_shown_at:
        return None
    alike = (each for each in reversed(state.open_incidents()) if each.cause == finding.cause)
    return same_fault(state, finding) or next(alike, None)


def _disturbs(state: JobState, finding: Finding) -> bool:
    return state.phase is not JobPhase.SUSPENDED and _node_in_round(state, finding.subject.node)


def _ask_about_spare(state: JobState, incident: Incident, decision: Decision, now: float) -> Step:
    """A node without ranks that may not be evicted: the job goes on without it, and a human hears of it."""
    assert incident.culprit.node is not None
    order = NodeOrder(incident.culprit.node, decision.reason)  # no incident: kept away from, not cordoned
    state = keep_away(state, order)
    action = Action(Rung.PAGE, now, f"paged: {decision.reason}", decision.reason)
    state, acted = act(state, (incident.id,), action)
    state, closed = close(
        state, IncidentState.PAGED, now, "the node gets no ranks; waiting for a human", only=incident.id
    )
    notify = Notify(incident.id, decision.reason)
    return Step(state, (*acted, *closed, notify), Reason("page", decision.reason, decision.guards))


def page(state: JobState, incident: Incident, decision: Decision, now: float) -> Step:
    """Rung 6: stop changing things, keep state, ask a human."""
    action = Action(Rung.PAGE, now, f"paged: {decision.reason}", decision.reason)
    state, acted = act(state, (incident.id,), action)
    state, closed = close(state, IncidentState.PAGED, now, "waiting for a human")
    last_words = incident.error.strip().rpartition("\n")[2]
    said = not last_words or last_words in decision.reason or incident.kind is FindingKind.NOTHING_TO_RESTORE
    says = decision.reason if said else f"{decision.reason}; last error: {last_words}"
    desired = Closed(state.job, next_number(state), succeeded=False, reason=says)
    state = moved(state, Turn.FAILED, reason=says, recovery=None, desired=desired)
    effects: tuple[Effect, ...] = (*acted, *closed, Notify(incident.id, says), Show(desired))
    return Step(state, effects, Reason("page", decision.reason, decision.guards))


def _is_for_all(state: JobState, finding: Finding) -> bool:
    """Whether what is found about a node concerns all jobs. What this job's processes say, or can bring about,
    may not.
    """
    policy = state.policy
    if policy is None or policy.cordon_on is CordonOn.ANYTHING:
        return True
    # A job may leave a node for whatever its spec says; that is no reason for others.
    return is_of_the_node(finding.kind, finding.cause) and not finding.own_rule


def _carry_out(
    state: JobState, finding: Finding, decision: Decision, incident: Incident, now: float
) -> tuple[JobState, tuple[Effect, ...]]:
    """Owe the round that the decision calls for, and move nodes in and out of service."""
    effects: tuple[Effect, ...] = ()
    if decision.evict is not None:
        leaving = (decision.evict, *decision.along)
        named = incident.id if _is_for_all(state, finding) else None  # no incident: kept away from, not cordoned
        for node in leaving:
            state = avoid(state, NodeOrder(node, decision.reason, named), now)
        does = f"evict node {in_words(leaving)}"
        state, effects = act(state, (incident.id,), Action(decision.rung, now, does, decision.reason))
    if decision.exonerate:
        state = take_back(state, decision.exonerate)
        effects += tuple(Pardon(node, decision.reason) for node in decision.exonerate)
        does = f"return {', '.join(decision.exonerate)}"
        state, more = act(state, (incident.id,), Action(decision.rung, now, does, decision.reason))
        effects += more
    state, more = _test(state, decision, now)
    effects += more
    if decision.rewinds and state.policy is not None:
        state = rewound(state, state.policy, finding)
        state = went_back(state, finding, now) if finding.kind is FindingKind.NON_FINITE else state
    touches_round = finding.kind not in NODE_FAULTS or _node_in_round(state, finding.subject.node)
    if not touches_round:
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
    )
    state = changed(
        owe(state, recovery),
        fault_step=state.step if state.progressed else state.fault_step,
    )
    return state, effects


def _test(state: JobState, decision: Decision, now: float) -> tuple[JobState, tuple[Effect, ...]]:
    """Ask for the tests that the decision calls for: those before the next round, and those when there is time."""
    effects: tuple[Effect, ...] = ()
    for names, bars in ((decision.tests, True), (decision.tests_later, False)):
        if names:
            asked = ask(state, names, LEVEL_OF_SUSPICION, decision.reason, now, bars=bars)
            state, effects = asked.state, effects + asked.effects
    return state, effects


def _case(state: JobState, finding: Finding, now: float) -> tuple[JobState, Incident, tuple[Effect, ...]]:
    known = same_fault(state, finding)
    if known is None:
        state, incident, effect = open_incident(state, finding, now)
        return state, incident, (effect,)
    incident = join_finding(known, finding, now)
    state, effects = update(state, incident)
    return state, incident, effects


def _remember(state: JobState, finding: Finding, decision: Decision, incident: Incident, now: float) -> JobState:
    """What repetition and follow-the-fault will look at; lost members also stop counting as present."""
    members = state.members
    if finding.kind is FindingKind.MEMBER_LOST:
        gone = members_of(finding)
        state, members = missed(state, gone, now, incident.id), members.lost(gone)
    failures = state.failures
    if may_loop(finding, decision):
        failures = (*failures, failure_of(state, finding, now))
    suspicions = tuple(each for each in state.suspicions if each.at > now - MEMORY_S)
    if finding.subject.node is not None and not finding.innocent:
        suspicions = (*suspicions, Suspicion(finding.subject.node, fault_class(finding), now, incident.id))
    return changed(
        state,
        members=members,
        suspicions=suspicions[-KEPT_SUSPICIONS:],
        failures=failures[-KEPT_FAILURES:],
    )


def members_of(finding: Finding) -> tuple[str, ...]:
    """Names of the members that the finding is about."""
    named = (each.member for each in (finding.subject, *finding.also))
    return tuple(name for name in named if name is not None)


def _node_in_round(state: JobState, node: str | None) -> bool:
    return state.round is not None and any(share.node == node for share in state.round.ranks)


def tested(state: JobState, event: Event, now: float) -> Step:
    """A member answered the test it was asked for."""
    assert isinstance(event, MemberTested)
    trial, member = awaited_test(state, event), state.member(event.member)
    if trial is None or member is None:
        return not_asked(state, event)
    asked_in = state
    # Devices of one node that differ are Unknown to the node itself; what others of their kind computed may tell.
    state, against, doubted = compared(state, member.node, event.checks)
    if not against and (says := misfit_of(event)) is not None:
        return unfit(state, member, says, now).then(lambda after: again(after, doubted, now))
    if event.verdict is Verdict.PASSED:
        state = without_misfits(state, {member.name})
    state = admitted(state, member.name, now)
    against = failed_checks(event) + against
    if event.verdict is Verdict.UNKNOWN and not against:
        says = f"{member.name} could not be tested: {event.says or 'no reason given'}"
        # Who is to be trusted again proves it: it is asked once more when the time for this answer is up.
        kept = asked_in if state.is_canary(member.name) else state
        return Step(kept, (), Reason("self-test", says))
    if event.verdict is Verdict.FAILED or against:
        return found(state, FindingMade(_failed_test(state, member, event, against, now)), now)
    state = advanced(passed(state, member, now), member.node, now)
    step = Step(state, (), Reason("self-test", f"{member.name} passed: {trial.reason}"))
    if state.is_canary(member.name):
        step = step.then(lambda after: examine(after, member.name, now))
    return step.then(lambda after: again(after, doubted, now)) if doubted else step


def _failed_test(state: JobState, member: Member, event: MemberTested, against: list[str], now: float) -> Finding:
    says = "; ".join(against[:8]) or event.says or "failed"
    return Finding(
        kind=FindingKind.SELF_TEST,
        subject=Subject(state.job, node=member.node, member=member.name, gpu=_device(event)),
        cause="self-test failed",
        evidence=(Evidence(f"self-test of {member.name}", says, now),),
        confidence=Confidence.CERTAIN,
        began_at=now,
        error=says,
        asks=XidAction.EVICT,
    )


def _device(event: MemberTested) -> str | None:
    """The one device that failed, None when several did or none is named."""
    devices = {check.device for check in event.checks if check.verdict is Verdict.FAILED}
    return devices.pop() if len(devices) == 1 else None
