"""From a finding to the round that is owed: open or join the incident, take a rung, record what it changes."""

import msgspec

from holdfast.api.finding import Confidence, Finding, FindingKind
from holdfast.api.incident import Action, Incident, IncidentState, Rung
from holdfast.api.plan import NodeOrder
from holdfast.api.policy import CordonOn, XidAction
from holdfast.api.round import Closed
from holdfast.api.selftest import TestLevel
from holdfast.api.status import JobPhase
from holdfast.watchdog.absence import missed
from holdfast.watchdog.avoidance import avoid, keep_away, take_back
from holdfast.watchdog.casebook import (
    KEPT_EVIDENCE,
    act,
    close,
    join_finding,
    many_lost,
    open_incident,
    same_fault,
    update,
)
from holdfast.watchdog.corruption import is_of_replicas, rewound, vouch
from holdfast.watchdog.effect import Effect, Notify, Pardon, Show
from holdfast.watchdog.formation import next_number
from holdfast.watchdog.ladder import MEMORY_S, Decision, decide, failure_of, fault_class, may_loop
from holdfast.watchdog.nonfinite import unhealthy, went_back
from holdfast.watchdog.recovery import owe
from holdfast.watchdog.sensed import is_of_the_node
from holdfast.watchdog.state import JobState, Recovery, Suspicion
from holdfast.watchdog.step import Reason, Step, changed, ignore
from holdfast.watchdog.trial import ask
from holdfast.watchdog.unseen import unforgiven
from holdfast.watchdog.wording import in_words

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
    state = changed(state, phase=JobPhase.FAILED, reason=says, recovery=None, desired=desired)
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
    suspicions += tuple(Suspicion(node, fault_class(finding), now, incident.id) for node in _suspects(finding))
    return changed(
        state,
        members=members,
        suspicions=suspicions[-KEPT_SUSPICIONS:],
        failures=failures[-KEPT_FAILURES:],
    )


def _suspects(finding: Finding) -> tuple[str, ...]:
    """Nodes that the fault is held against: of workers that died with the first one too."""
    if finding.innocent:
        return ()
    named = (finding.subject, *(finding.also if finding.kind is FindingKind.PROCESS_EXIT else ()))
    return tuple(dict.fromkeys(each.node for each in named if each.node is not None))


def members_of(finding: Finding) -> tuple[str, ...]:
    """Names of the members that the finding is about."""
    named = (each.member for each in (finding.subject, *finding.also))
    return tuple(name for name in named if name is not None)


def _node_in_round(state: JobState, node: str | None) -> bool:
    return state.round is not None and any(share.node == node for share in state.round.ranks)
