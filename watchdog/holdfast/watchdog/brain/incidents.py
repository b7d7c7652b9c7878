"""The incidents of a job: opened by a finding, joined by later evidence, closed by recovery or a page."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from holdfast.api.event import Event, StacksTaken
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.incident import ALSO_KEPT, Action, Incident, IncidentState, Moment, Rung
from holdfast.api.place import Gathering
from holdfast.watchdog.brain.gatherings import family_of, nodes_of
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import (
    Effect,
    IncidentClosed,
    IncidentOpened,
    IncidentUpdated,
    Reason,
    Step,
    changed,
    ignore,
)

KEPT_INCIDENTS = 256  # closed incidents beyond this live on in the store's incident table and the journal
KEPT_EVIDENCE = 64
KEPT_LINES = 64

# What explains more: a GPU that fell off the bus explains a dead worker, never the other way round.
EXPLAINS = {
    FindingKind.STRAGGLER: -1,  # nothing is broken
    FindingKind.COLLECTIVE_FAILED: 0,
    FindingKind.HANG: 1,
    FindingKind.PROCESS_EXIT: 2,
    FindingKind.NON_FINITE: 3,
    FindingKind.DIVERGENCE: 3,
    FindingKind.DATA: 1,
    FindingKind.USER_CODE: 3,
    FindingKind.NOTHING_TO_RESTORE: 3,
    FindingKind.MEMBER_LOST: 4,
    FindingKind.THERMAL: 5,
    FindingKind.CONDITION: 6,
    FindingKind.CORRUPTION: 7,
    FindingKind.SELF_TEST: 8,
    FindingKind.XID: 9,
    FindingKind.GPU_LOST: 10,
    FindingKind.CRASH_LOOP: 11,
}

# Kinds that name several on the same evidence.
NAMES_ALIKE = (FindingKind.CORRUPTION, FindingKind.DATA)

# What ranks may do alike, on whatever node they are.
OF_ALL_RANKS = (FindingKind.USER_CODE, FindingKind.PROCESS_EXIT)


def open_incident(state: JobState, finding: Finding, now: float) -> tuple[JobState, Incident, Effect]:
    """A new incident for the finding."""
    count = state.incident_count + 1
    gathered = _gathering_of(state, finding.kind, finding.subject, finding.cause)
    told = tuple(Evidence("the fleet", each.says, now) for each in gathered)
    incident = Incident(
        id=f"inc-{count:04d}",
        job=state.job,
        kind=finding.kind,
        culprit=finding.subject,
        confidence=finding.confidence,
        cause=finding.cause,
        state=IncidentState.OPEN,
        began_at=min(finding.began_at, now),
        detected_at=now,
        evidence=(*finding.evidence, *told)[:KEPT_EVIDENCE],
        timeline=(
            Moment(min(finding.began_at, now), f"began (estimated): {finding.cause}"),
            Moment(now, f"detected: {finding.kind.value} of {finding.subject}"),
        ),
        round=finding.round if finding.round is not None else (state.round.number if state.round else None),
        error=finding.error,
        innocent=finding.innocent,
        own_rule=finding.own_rule,
        known_at=known_at(finding, now),
        also=_also(finding),
    )
    kept = (*state.incidents, incident)[-KEPT_INCIDENTS:]
    return changed(state, incidents=kept, incident_count=count), incident, IncidentOpened(incident)


def _gathering_of(state: JobState, kind: FindingKind, subject: Subject, cause: str) -> tuple[Gathering, ...]:
    """The named places behind which such faults gather, and behind which one of the nodes is that it names."""
    family = family_of(kind, subject, cause)
    found = (each for node in nodes_of(subject) for each in state.gathered_at(node) if each.family is family)
    return tuple(dict.fromkeys(found))


def gathers(state: JobState, gatherings: Iterable[Gathering], now: float) -> tuple[JobState, tuple[Effect, ...]]:
    """Say in the open incidents of nodes behind these places that faults gather there."""
    told: dict[str, tuple[Gathering, ...]] = {}
    news = frozenset((each.place, each.family) for each in gatherings)
    for each in state.open_incidents() if news else ():
        found = _gathering_of(state, each.kind, each.culprit, each.cause)
        if said := tuple(one for one in found if (one.place, one.family) in news):
            told[each.id] = said

    def noted(incident: Incident) -> Incident:
        moments = (Moment(now, each.says) for each in told[incident.id])
        evidence = (Evidence("the fleet", each.says, now) for each in told[incident.id])
        return msgspec.structs.replace(
            incident,
            evidence=(*incident.evidence, *evidence)[:KEPT_EVIDENCE],
            timeline=_bounded((*incident.timeline, *moments)),
        )

    return _rewrite(state, set(told), noted, IncidentUpdated)


def join_finding(incident: Incident, finding: Finding, now: float) -> Incident:
    """The incident with a later finding about the same fault; the kind that explains more becomes its kind."""
    joined = msgspec.structs.replace(
        incident,
        evidence=(*incident.evidence, *finding.evidence)[:KEPT_EVIDENCE],
        timeline=_bounded((*incident.timeline, Moment(now, f"evidence: {finding.kind.value}, {finding.cause}"))),
        error=incident.error or finding.error,
    )
    of_a_death = finding.kind is incident.kind is FindingKind.PROCESS_EXIT
    if of_a_death and (finding.round, finding.subject) == (incident.round, incident.culprit):
        # A rank dies once in a round: a second finding about that knows more of why.
        note = f"first judged {incident.cause}"
        innocent = incident.innocent or finding.innocent
        known = known_at(finding, now)
        return msgspec.structs.replace(joined, cause=finding.cause, note=note, innocent=innocent, known_at=known)
    if EXPLAINS[finding.kind] <= EXPLAINS[incident.kind]:
        return joined
    return msgspec.structs.replace(
        joined,
        kind=finding.kind,
        culprit=finding.subject,
        confidence=finding.confidence,
        cause=finding.cause,
        error=finding.error or incident.error,
        began_at=min(incident.began_at, finding.began_at),
        note=f"first judged {incident.kind.value}, {incident.cause}",
        innocent=finding.innocent,
        own_rule=finding.own_rule,
        known_at=known_at(finding, now),
        also=_also(finding),
    )


def _also(finding: Finding) -> tuple[Subject, ...]:
    """Whom the finding names as it does its subject; of another kind they are who died or was lost with it."""
    return finding.also[:ALSO_KEPT] if finding.kind in NAMES_ALIKE else ()


def absolved(state: JobState, incident: Incident) -> JobState:
    """The incident held against no node. What else is held against its nodes stands."""
    back = [order.node for order in state.avoided if order.incident == incident.id]
    return changed(
        state,
        suspicions=tuple(each for each in state.suspicions if each.incident != incident.id),
        avoided=tuple(order for order in state.avoided if order.node not in back),
        returned=tuple(dict.fromkeys((*state.returned, *back))),
    )


def known_at(finding: Finding, now: float) -> float | None:
    """`now` where the finding says who it was and what, at least probably. A collective that failed is a symptom:
    it never tells the cause.
    """
    says = finding.confidence is not Confidence.UNKNOWN and finding.kind is not FindingKind.COLLECTIVE_FAILED
    return now if says else None


def same_fault(state: JobState, finding: Finding) -> Incident | None:
    """The open incident this finding belongs to: one on the same node, that has not recovered yet. What the script
    does belongs to what it did before; it has not recovered either.
    """
    node = finding.subject.node
    if node is None and finding.kind is FindingKind.MEMBER_LOST:
        return many_lost(state)
    if node is None and finding.kind not in OF_ALL_RANKS:
        return None
    return next(
        (
            each
            for each in reversed(state.open_incidents())
            if each.culprit.node == node and (node is not None or each.kind in OF_ALL_RANKS)
        ),
        None,
    )


def many_lost(state: JobState) -> Incident | None:
    """The open incident of many members that were lost at once, which nobody is the culprit of."""
    alike = (each for each in reversed(state.open_incidents()) if each.kind is FindingKind.MEMBER_LOST)
    return next((each for each in alike if each.culprit.node is None), None)


def act(state: JobState, ids: Iterable[str], action: Action) -> tuple[JobState, tuple[Effect, ...]]:
    """Record an action in the named incidents; `recovered_round` follows the action's round."""

    def with_action(incident: Incident) -> Incident:
        return msgspec.structs.replace(
            incident,
            actions=_bounded((*incident.actions, action)),
            timeline=_bounded((*incident.timeline, Moment(action.at, action.does))),
            recovered_round=action.round if action.round is not None else incident.recovered_round,
        )

    return _rewrite(state, set(ids), with_action, IncidentUpdated)


def stacks_taken(state: JobState, event: Event, now: float) -> Step:
    """Where the ranks stood joins its incident, which may be over by then."""
    assert isinstance(event, StacksTaken)
    incident = next((each for each in state.incidents if each.id == event.incident), None)
    if incident is None:
        return ignore(state, f"there is no incident {event.incident}")
    first = incident.evidence[: KEPT_EVIDENCE - len(event.evidence)]
    state, effects = update(state, msgspec.structs.replace(incident, evidence=(*first, *event.evidence)))
    return Step(state, effects, Reason("evidence", f"the stacks of the ranks joined {incident.id}"))


def paging(why: str, now: float) -> Action:
    """What is done when a human is asked."""
    return Action(Rung.PAGE, now, f"paged: {why}", why)


def brief_incident(
    state: JobState, finding: Finding, action: Action | None, outcome: IncidentState, says: str, now: float
) -> tuple[JobState, Incident, tuple[Effect, ...]]:
    """An incident that is over as soon as it is written: somebody should know."""
    state, incident, opened = open_incident(state, finding, now)
    acted: tuple[Effect, ...] = ()
    if action is not None:
        state, acted = act(state, (incident.id,), action)
    state, closed = close(state, outcome, now, says, only=incident.id)
    return state, incident, (opened, *acted, *closed)


def update(state: JobState, incident: Incident) -> tuple[JobState, tuple[Effect, ...]]:
    """Put a changed incident in place."""
    return _rewrite(state, {incident.id}, lambda _: incident, IncidentUpdated)


def healed_by(state: JobState, round_number: int) -> set[str]:
    """The open incidents that `round_number` is to heal: also those that a round before it was formed for, which
    broke before it made a step.
    """
    rounds = {each.id: each.recovered_round for each in state.open_incidents()}
    return {id for id, healer in rounds.items() if healer is not None and healer <= round_number}


def count_loss(state: JobState, round_number: int) -> tuple[JobState, tuple[Effect, ...]]:
    """Say of the incidents that `round_number` heals that it did, and count the steps they cost: trained before,
    to be trained again. A cost that is not known stays Unknown.
    """
    known = state.fault_step is not None and state.restored_step is not None
    lost = max(0, (state.fault_step or 0) - (state.restored_step or 0)) if known else None
    ids = healed_by(state, round_number)
    state = changed(state, fault_step=None if known else state.fault_step)

    def counted(incident: Incident) -> Incident:
        return msgspec.structs.replace(incident, lost_steps=lost, recovered_round=round_number)

    return _rewrite(state, ids, counted, IncidentUpdated)


def note(state: JobState, round_number: int, at: float, says: str) -> tuple[JobState, tuple[Effect, ...]]:
    """Add a line to the open incidents that `round_number` is to heal."""
    ids = healed_by(state, round_number)

    def noted(incident: Incident) -> Incident:
        return msgspec.structs.replace(incident, timeline=_bounded((*incident.timeline, Moment(at, says))))

    return _rewrite(state, ids, noted, IncidentUpdated)


def close(
    state: JobState,
    outcome: IncidentState,
    at: float,
    says: str,
    *,
    only: str | None = None,
    stepped: bool = False,
) -> tuple[JobState, tuple[Effect, ...]]:
    """Close every open incident, or one. `stepped`: a new step of the newest round, complete at `at`, is what
    closes it; nothing else tells how long it took to recover, and by which round.
    """
    newest = state.round.number if stepped and state.round is not None else None
    ids = {incident.id for incident in state.open_incidents() if only in (None, incident.id)}

    def closed(incident: Incident) -> Incident:
        return msgspec.structs.replace(
            incident,
            state=outcome,
            recovered_at=max(at, incident.detected_at) if stepped else None,
            recovered_round=newest if newest is not None else incident.recovered_round,
            timeline=(*incident.timeline, Moment(at, says)),
        )

    return _rewrite(state, ids, closed, IncidentClosed)


T = TypeVar("T")


def _bounded(lines: tuple[T, ...]) -> tuple[T, ...]:
    """The first ones tell how it began, the last ones how it stands; a long middle is left to the journal."""
    if len(lines) <= KEPT_LINES:
        return lines
    return lines[: KEPT_LINES // 2] + lines[-KEPT_LINES // 2 :]


def _rewrite(
    state: JobState,
    ids: set[str],
    rewrite: Callable[[Incident], Incident],
    effect: Callable[[Incident], Effect],
) -> tuple[JobState, tuple[Effect, ...]]:
    """Replace the named incidents; one effect for each that changed."""
    after = tuple(rewrite(each) if each.id in ids else each for each in state.incidents)
    effects = tuple(effect(new) for old, new in zip(state.incidents, after, strict=True) if old is not new)
    return changed(state, incidents=after), effects
