"""Observe mode: what would be done about a fault is told in its incident, and not done.

The same brain decides, on a copy of the job that may act; of what follows only the words are kept. Facts stay
facts: who is there, what was tested, how far training is. A job that has lost a worker or a member of its round
cannot go on, and nothing heals it: it ends, as it would without Holdfast. A member that leaves in good order may
be the first of all, so what ends the job then is that the others miss it.

What people ask for is done: an intervention is nobody's decision but theirs. So are the first round, and the first
one after everybody had left.
"""

from collections.abc import Callable, Mapping

import msgspec

from holdfast.api.event import (
    Event,
    FindingMade,
    MemberDeparting,
    MemberJoined,
    MemberLeft,
    MemberTested,
    NodeChanged,
    NodeDeparting,
    NodeReputed,
    PodChanged,
)
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.incident import Action, Incident, IncidentState, Moment, Rung
from holdfast.api.round import Closed, Entry
from holdfast.api.selftest import Verdict
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.incidents import KEPT_INCIDENTS, open_incident
from holdfast.watchdog.brain.phases import Turn, moved
from holdfast.watchdog.brain.roster import MemberState
from holdfast.watchdog.brain.rounds import next_number
from holdfast.watchdog.brain.settling import settle
from holdfast.watchdog.brain.state import JobState, Recovery
from holdfast.watchdog.brain.step import (
    Dismiss,
    Examine,
    IncidentClosed,
    IncidentOpened,
    Reason,
    Save,
    Show,
    Step,
    changed,
    ignore,
)
from holdfast.watchdog.wording import in_words

Act = Callable[[JobState, Event, float], Step]
"""Applies an event, and everything that follows from the state after it."""

NOTHING_DONE = "observing only: nothing was done"
# What is found again at every look, such as replicas that differ from now on, is told this often.
TOLD_AGAIN_S = 300.0
HEEDED = (
    FindingMade,
    MemberDeparting,
    MemberJoined,
    MemberLeft,
    MemberTested,
    NodeChanged,
    NodeDeparting,
    NodeReputed,
    PodChanged,
)
# Whether a fault of the kind leaves a round without one of its processes, so that it cannot go on.
ENDS_THE_ROUND: Mapping[FindingKind, bool] = {
    FindingKind.PROCESS_EXIT: True,
    FindingKind.USER_CODE: True,
    FindingKind.NOTHING_TO_RESTORE: True,
    FindingKind.MEMBER_LOST: True,
    FindingKind.CRASH_LOOP: True,  # what a worker's death amounts to
    FindingKind.COLLECTIVE_FAILED: False,  # but see STANDS_STILL
    FindingKind.HANG: False,
    FindingKind.XID: False,
    FindingKind.GPU_LOST: False,
    FindingKind.CONDITION: False,
    FindingKind.THERMAL: False,
    FindingKind.SELF_TEST: False,
    FindingKind.CORRUPTION: False,
    FindingKind.NON_FINITE: False,
    FindingKind.DIVERGENCE: False,
    FindingKind.STRAGGLER: False,
    FindingKind.DATA: False,
}
# With every process alive a round that stands still may go on; without one that has left, it cannot.
STANDS_STILL = (FindingKind.COLLECTIVE_FAILED, FindingKind.HANG)


def is_observed(state: JobState, event: Event) -> bool:
    """Whether the brain would decide about the event and may not: a round runs, and none is owed."""
    if state.policy is None or not state.policy.observe or not isinstance(event, HEEDED):
        return False
    if isinstance(event, FindingMade) and event.finding.skipped:
        return False  # the script has done it itself
    in_force = state.round is not None and state.recovery is None
    return in_force and state.phase not in (JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.SUSPENDED)


def observe(state: JobState, event: Event, now: float, act: Act) -> Step:
    """Tell what `act` would do about the event; where it would do nothing, the event is a fact like any other."""
    assert state.policy is not None
    acting = changed(state, policy=msgspec.structs.replace(state.policy, observe=False))
    would = act(acting, event, now)
    incident = _incident(state, would, event, now)
    if incident is None:
        return act(state, event, now)
    if isinstance(event, NodeReputed):
        told_of = (each for each in reversed(state.incidents) if each.state is IncidentState.OBSERVED)
        known = next((each.id for each in told_of if each.culprit.node == event.node), None)
        if known is not None:
            return ignore(state, f"{known} tells of node {event.node} already, which was not left for it")
    told, step = _told(state, incident, _would(state, would, incident, now), now)
    ends = any(_ends_the_round(state, each.kind) for each in _opened(state, would))
    step = step.then(_facts, would, event, now, act)
    return step.then(_end, told).then(settle, now) if ends else step


def _ends_the_round(state: JobState, kind: FindingKind) -> bool:
    """Whether the round cannot go on after a fault of the kind, for itself or for what has left before."""
    if ENDS_THE_ROUND.get(kind, True) or kind not in STANDS_STILL:
        return ENDS_THE_ROUND.get(kind, True)
    # A process of the round went in good order. One that came back in its place has no part in it.
    return any(
        each is None or each.standing is MemberState.LOST or each.joined_at > state.round_shown_at
        for each in state.ranked_members()
    )


def _opened(state: JobState, would: Step) -> list[Incident]:
    """The incidents that acting would open, as they would stand."""
    count = would.state.incident_count - state.incident_count
    return list(would.state.incidents[-count:]) if count else []


def _incident(state: JobState, would: Step, event: Event, now: float) -> Incident | None:
    """What is told: the incident that acting opens, or one about a change that would be planned without any."""
    opened = _opened(state, would)
    if opened:
        return opened[-1]
    after = would.state
    is_planned = (
        after.departures != state.departures
        or after.avoided != state.avoided
        or after.recovery is not None
        or after.save_count != state.save_count
        or after.round != state.round
    )
    finding = _departure(state, event, now) if is_planned else None
    return None if finding is None else open_incident(state, finding, now)[1]


def _departure(state: JobState, event: Event, now: float) -> Finding | None:
    """A change that somebody announces, in the words of a finding; None where the event announces none."""
    match event:
        case NodeChanged(node=node, reason=reason):
            who, cause, source = Subject(state.job, node=node), "node drained", "operator"
        case NodeDeparting(node=node, reason=reason):
            who, cause, source = Subject(state.job, node=node), "node taken away", "notice"
        case NodeReputed(node=node, reason=reason):
            who, cause, source = Subject(state.job, node=node), "node not trusted", "other jobs"
        case PodChanged(member=name, node=node, reason=reason):
            who, cause, source = Subject(state.job, node=node, member=name), "pod told to end", "operator"
        case MemberDeparting(member=name, reason=reason) | MemberLeft(member=name, reason=reason):
            member, source = state.member(name), "member connection"
            cause = "launcher left" if isinstance(event, MemberLeft) else "launcher told to end"
            who = Subject(state.job, node=member.node if member is not None else None, member=name)
        case _:
            return None
    evidence = (Evidence(source, reason, now),)
    return Finding(FindingKind.CONDITION, who, cause, evidence, Confidence.CERTAIN, began_at=now)


def _would(state: JobState, would: Step, incident: Incident, now: float) -> tuple[Action, ...]:
    """What acting would do, in the order in which it would be done; never empty."""
    actions = [
        msgspec.structs.replace(each, does=f"would: {_in_short(each.does)}", round=None)
        for each in incident.actions
    ]
    rung = max((each.rung for each in actions), default=Rung.SWAP)
    owed = would.state.recovery
    if owed is not None:
        rung = owed.rung if owed.rung is not None else rung
        after = f" in {owed.not_before - now:.0f} s" if owed.not_before > now else ""
        waits = f" ({would.state.reason})" if would.state.reason != state.reason else ""
        actions.append(Action(rung, now, f"would: begin a new round{after}, {_entry(owed)}{waits}", owed.reason))
    tests = [each.member for each in would.effects if isinstance(each, Examine)]
    if tests:
        actions.append(Action(rung, now, f"would: test the devices of {in_words(tests)}", would.reason.says))
    if any(isinstance(each, Save) for each in would.effects):
        actions.append(Action(rung, now, "would: ask for a checkpoint", would.reason.says))
    if len(would.state.departures) > len(state.departures):
        leaving = in_words(would.state.leaving - state.leaving) or "whoever is on it"
        says = f"would: save, then go on without {leaving}"
        actions.append(Action(rung, now, says, would.state.departures[-1].reason))
    kept_away = would.state.avoided_nodes - state.avoided_nodes
    if kept_away and not any("evict" in each.does for each in actions):
        actions.append(Action(rung, now, f"would: give {in_words(kept_away)} no ranks", would.reason.says))
    if not actions and would.state.round != state.round and would.state.round is not None:
        says = f"would: round with {len(would.state.round.ranks)} members"
        actions.append(Action(rung, now, says, would.state.round.reason))
    return tuple(actions) or (Action(Rung.SKIP_STEP, now, "would: report it", would.reason.says),)


def _in_short(does: str) -> str:
    """An action of the brain's, as what would be done: a number that is not given yet is not told."""
    head, colon, rest = does.partition(": ")
    if head == "paged":
        return f"stop the job and page a human{colon}{rest}"
    return f"new round: {rest}" if head.startswith("round ") else does


def _entry(owed: Recovery) -> str:
    if owed.entry is Entry.RESPAWN:
        return "every worker anew"
    named = ", ".join(map(str, owed.fresh_ranks))
    return f"rank {named} anew" if named else "all ranks re-entering"


def _told(state: JobState, incident: Incident, actions: tuple[Action, ...], now: float) -> tuple[str, Step]:
    """What is told in words, and the step that writes it down: once, and again when it still holds much later."""
    words = "; ".join(each.does for each in actions)
    says = f"{incident.cause} of {incident.culprit}: {words}"
    for known in reversed(state.incidents):
        alike = (known.kind, known.culprit, known.cause) == (incident.kind, incident.culprit, incident.cause)
        is_recent = known.state is IncidentState.OBSERVED and now < known.detected_at + TOLD_AGAIN_S
        if alike and is_recent and known.rung == max(each.rung for each in actions):
            return says, ignore(state, f"told in {known.id} already: {says}")
    count = state.incident_count + 1
    moments = tuple(Moment(each.at, f"{each.does}, because {each.reason}") for each in actions)
    written = msgspec.structs.replace(
        incident,
        id=f"inc-{count:04d}",
        state=IncidentState.OBSERVED,
        actions=actions,
        timeline=(*incident.timeline[:2], *moments, Moment(now, NOTHING_DONE)),
        recovered_round=None,
        recovered_at=None,
        lost_steps=None,
    )
    after = changed(state, incidents=(*state.incidents, written)[-KEPT_INCIDENTS:], incident_count=count)
    return says, Step(after, (IncidentOpened(written), IncidentClosed(written)), Reason("observed", says))


def _facts(state: JobState, would: Step, event: Event, now: float, act: Act) -> Step:
    """What is true whether or not anything is done about it."""
    seen = would.state
    state = changed(
        state,
        suspicions=seen.suspicions,
        racks=seen.racks,
        places=seen.places,
        unready=seen.unready,
        unhealthy_from=seen.unhealthy_from,
    )
    if isinstance(event, MemberTested):
        return act(state, msgspec.structs.replace(event, verdict=Verdict.PASSED, checks=(), links=None), now)
    if isinstance(event, MemberLeft):
        # One that left is not there. Once nobody is left of the round, the next one is a new beginning.
        others = [each for each in state.ranked_members() if each is not None and each.name != event.member]
        if not any(each.standing is MemberState.PRESENT for each in others):
            return act(state, event, now)
        lost = [event.member]
    else:
        gone = {each.name for each in seen.members if each.standing is MemberState.LOST}
        lost = [each.name for each in state.members if each.name in gone or each.name not in seen.members]
    after = changed(state, members=state.members.lost(lost)) if lost else state
    told = tuple(each for each in would.effects if isinstance(each, Dismiss))
    return Step(after, told, Reason("observed", NOTHING_DONE))


def _end(state: JobState, told: str) -> Step:
    """Nobody brings back what was lost, and the others would wait for it: the job ends, and its launchers too."""
    says = f"observing only, so that this was not healed: {told}"
    desired = Closed(state.job, next_number(state), succeeded=False, reason=says)
    after = moved(state, Turn.FAILED, reason=says, recovery=None, desired=desired)
    return Step(after, (Show(desired),), Reason("observed", says))
