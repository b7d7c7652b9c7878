"""Stops that are the script's own: what is remembered of them, and when a hang is held against no node.

A process that works, and a rank that stands at one line of the script twice, tell of the script. A rank that stood
in a collective waited for others, whatever its process did meanwhile; where others had passed that collective, its
node or the network kept it there.
"""

import msgspec

from holdfast.api.event import Event, StacksTaken, StopEnded
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind
from holdfast.api.incident import Incident, Moment
from holdfast.api.longwork import LongStop
from holdfast.api.stacks import Stood
from holdfast.watchdog.brain import incidents
from holdfast.watchdog.brain.incidents import KEPT_EVIDENCE, absolved, update
from holdfast.watchdog.brain.repetition import held_against_node
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import Reason, Step, changed, ignore, stay

ADVICE = (
    "where it is meant to take so long, write `with run.during(Phase.IDLE):` around it, or, for what sleeps with "
    "the interpreter held, set `faultPolicy.hang.timeout` to more than it takes"
)


def is_no_reason_to_leave(state: JobState, finding: Finding) -> bool:
    """Whether the number of a node's hangs says nothing: this one is, or may turn out to be, the script's own."""
    lives = finding.step is not None
    rank = finding.subject.rank
    if finding.innocent:
        return not state.work.was_held(rank)
    return lives and state.work.may_be_scripts(rank)


def hung(state: JobState, finding: Finding, incident: Incident) -> JobState:
    """Remember where the ranks of a hang stood, if the kernel would run their processes."""
    others = tuple(each for each in state.work.stops if each.incident != incident.id)
    if incident.kind is not FindingKind.HANG and others != state.work.stops:
        return changed(state, work=state.work.with_stops(others))  # what explains more has joined it
    if finding.kind is not FindingKind.HANG or finding.step is None:
        return state
    named = [finding.subject, *finding.also] if finding.subject.rank is not None else [finding.subject]
    more = [LongStop(each.rank, finding.step, incident.id, finding.innocent) for each in named]
    return changed(state, work=state.work.with_stops((*state.work.stops, *more)))


def stop_ended(state: JobState, event: Event, now: float) -> Step:
    """A long stop that ended by itself: the next one may take as long."""
    assert isinstance(event, StopEnded)
    work = state.work.after(event.rank, event.took_s, worked=event.worked)
    if work == state.work:
        return ignore(state, "such stops took longer before")
    does = "worked" if event.worked else "waited"
    says = f"rank {event.rank} {does} for {event.took_s:.1f} s without a step, and went on"
    return Step(changed(state, work=work), (), Reason("long work", says))


def stacks_taken(state: JobState, event: Event, now: float) -> Step:
    """Where the ranks stood joins its incident, and may say whose fault it was."""
    assert isinstance(event, StacksTaken)
    step = incidents.stacks_taken(state, event, now)
    return step.then(_located, event, now)


def _located(state: JobState, event: Event, now: float) -> Step:
    assert isinstance(event, StacksTaken)
    incident = _incident(state, event.incident)
    at = next((at for at, each in enumerate(state.work.stops) if each.incident == event.incident), None)
    if incident is None or incident.kind is not FindingKind.HANG or at is None or not event.line:
        return stay(state)
    stops = state.work.stops
    if event.stood is Stood.HELD:
        return _held(state, incident, at, now)
    if event.stood is Stood.WAITS or event.waits:
        is_proved = incident.confidence is Confidence.CERTAIN  # by its own process, wherever that stands
        return stay(state) if is_proved else _waited(state, incident, now)
    stop = msgspec.structs.replace(stops[at], line=event.line)
    state = changed(state, work=state.work.with_stops((*stops[:at], stop, *stops[at + 1 :])))
    who = "the ranks" if stop.rank is None else f"rank {stop.rank}"
    told = Evidence("the script", f"{who} stood at {event.line}: {ADVICE}", now)
    evidence = (*incident.evidence[: KEPT_EVIDENCE - 1], told)
    state, effects = update(state, msgspec.structs.replace(incident, evidence=evidence))
    step = Step(state, effects, Reason("evidence", f"{incident.id}: {told.says}"))
    return step.then(_again, stop, now) if stop.rank is not None and state.work.is_scripts(stop) else step


def _again(state: JobState, stop: LongStop, now: float) -> Step:
    """The rank stood at that line before: none of these stops is held against a node any more."""
    step = stay(state)
    for each in state.work.stops:
        incident = _incident(step.state, each.incident)
        is_alike = (each.rank, each.line) == (stop.rank, stop.line)
        if not is_alike or incident is None or incident.innocent or incident.kind is not FindingKind.HANG:
            continue
        says = f"rank {stop.rank} stood at {stop.line} more than once: that is the script, and no node"
        after = msgspec.structs.replace(
            incident,
            innocent=True,
            timeline=(*incident.timeline, Moment(now, says)),
            note=f"first judged a hang of {incident.culprit}",
        )
        after_state, effects = update(absolved(step.state, incident), after)
        step = Step(after_state, (*step.effects, *effects), Reason("the script", says))
    return step


def _waited(state: JobState, incident: Incident, now: float) -> Step:
    """It waited in a collective, asleep or busy: somebody else did not come, and nobody knows who."""
    says = f"rank {incident.culprit.rank} waited in a collective: who kept it waiting is not known"
    before = "work of the script" if incident.innocent else f"a hang of {incident.culprit}"
    after = msgspec.structs.replace(
        incident,
        innocent=False,
        confidence=Confidence.UNKNOWN,
        known_at=None,
        timeline=(*incident.timeline, Moment(now, says)),
        note=f"first judged {before}",
    )
    stops = tuple(each for each in state.work.stops if each.incident != incident.id)
    state, effects = update(absolved(changed(state, work=state.work.with_stops(stops)), incident), after)
    return Step(state, effects, Reason("evidence", says))


def _held(state: JobState, incident: Incident, at: int, now: float) -> Step:
    """The others are done with the collective that it was in: what came to them did not come to it."""
    stops, culprit = state.work.stops, incident.culprit
    stop = msgspec.structs.replace(stops[at], held=True, worked=False)
    state = changed(state, work=state.work.with_stops((*stops[:at], stop, *stops[at + 1 :])))
    says = (
        f"rank {culprit.rank} was in a collective that others have passed: its node or the network kept it there"
    )
    after = msgspec.structs.replace(incident, timeline=(*incident.timeline, Moment(now, says)))
    if incident.innocent:
        after = msgspec.structs.replace(after, innocent=False, note="first judged work of the script")
        state = held_against_node(state, incident, now)
    state, effects = update(state, after)
    return Step(state, effects, Reason("evidence", says))


def _incident(state: JobState, id: str) -> Incident | None:
    return next((each for each in reversed(state.incidents) if each.id == id), None)
