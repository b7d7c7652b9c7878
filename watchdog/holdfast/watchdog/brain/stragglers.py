"""The ladder for ranks that all others wait for: tell, test, swap once, and see where the slowness goes.

Nothing is broken, so nothing is hurried, no step is given up, and nobody is evicted for a step time alone. Where a
node may be the reason, its devices are tested in the next gap between rounds. Where the job's policy lets it and a
spare is ready, the round is saved and left in good order, and the spare takes the ranks. If they are slow there
too, the slowness followed them: the node is innocent, and what they are given to do is not. If they are not, for
longer than finding them took, it stayed with the node.

What is to move follows from the state alone, so that a spare that comes later, another policy and a restart of the
watchdog are no cases of their own.
"""

import msgspec

from holdfast.api.event import ConditionOver, Event
from holdfast.api.finding import Finding, FindingKind, SlowCause, Subject
from holdfast.api.incident import Action, Incident, IncidentState, Moment, Rung
from holdfast.api.plan import NodeOrder
from holdfast.api.policy import SlowAction
from holdfast.api.round import Round
from holdfast.api.selftest import TestLevel
from holdfast.watchdog.brain import nodes
from holdfast.watchdog.brain.departures import expect, gives_up_at, why_part, without_slow
from holdfast.watchdog.brain.incidents import act, brief_incident, close, join_finding, open_incident
from holdfast.watchdog.brain.ladder import Decision, within_blast_radius
from holdfast.watchdog.brain.repetition import LATELY_S
from holdfast.watchdog.brain.rounds import legal_size
from holdfast.watchdog.brain.saves import can_save, in_force
from holdfast.watchdog.brain.selftests import ask
from holdfast.watchdog.brain.slowness import (
    OF_THE_NODE,
    charge_first,
    ended,
    follows,
    is_same,
    is_slow_now,
    put,
    rewrite,
    slow_now,
    slow_ranks,
    where,
    with_record,
    without_record,
)
from holdfast.watchdog.brain.state import Departure, DepartureCause, JobState, SlowRanks, SlowStage
from holdfast.watchdog.brain.step import Effect, Reason, Step, changed, ignore, stay
from holdfast.watchdog.wording import in_words, ranks_in_words

# A spare that is ready takes over as soon as the round is saved; who waits for longer waits for something else.
SWAP_WITHIN_S = 86_400.0
# Ranks that a spare was given are watched for as many steps as the policy asks for, and for twice as long as their
# round had been looked at until they were found, after this: the detector has to get to know the new round, and
# what is slow at times shows only in sixteen looks of 2.5 s.
STEPS_WATCHED = 50
WATCHED_S = 120.0
# Why another node would be no help.
NO_HELP = {
    SlowCause.DATA: "another node would be given the same data",
    SlowCause.SHAPE: "another node would have as much to do",
    SlowCause.EVERYBODY: "all are slow alike",
}


def suspected(state: JobState, finding: Finding, now: float) -> Step:
    """Ranks were found slow: they are news, or known, or slow wherever they are."""
    slow = finding.slow
    if slow is None:
        return ignore(state, f"{finding.cause} on {finding.subject}: it does not say what makes it slow")
    found = slow_ranks(state, finding, slow, "", now)
    for known in state.slow:
        if follows(known, found):
            return _followed(state, known, found, finding, now)
    known_so = next((each for each in reversed(state.slow) if is_same(each, found)), None)
    if known_so is None:
        return _told(state, found, finding, now)
    if now > known_so.seen_at + LATELY_S:
        # Another incident, of a node whose ranks have been moved before all the same.
        kept = {"stage": known_so.stage, "tries": known_so.tries}
        return _told(without_record(state, known_so), msgspec.structs.replace(found, **kept), finding, now)
    return _again(state, known_so, found, finding, now)


def _told(state: JobState, found: SlowRanks, finding: Finding, now: float) -> Step:
    """A new incident: over at once, unless it can be acted on at once."""
    why_not = hindrance(state, found, now)
    effects: tuple[Effect, ...]
    if why_not is None:
        state, incident, opened = open_incident(state, finding, now)
        effects, says = (opened,), f"{finding.cause} on {finding.subject}"
    else:
        says = f"{finding.cause} on {finding.subject}: reported, nothing was changed: {why_not}"
        state, incident, effects = brief_incident(state, finding, None, IncidentState.RECOVERED, says, now)
    record = msgspec.structs.replace(found, incident=incident.id)
    state, charged = charge_first(with_record(state, record), record, finding.step or state.step or 0)
    step = Step(state, effects + charged, Reason("straggler", says))
    return step.then(_test_later, record, now)


def _test_later(state: JobState, record: SlowRanks, now: float) -> Step:
    """The devices of a node that may be the reason are tested when its workers have next left a round."""
    is_suspect = record.slow.cause in OF_THE_NODE
    if state.policy is None or state.policy.preflight is None or record.node is None or not is_suspect:
        return stay(state)
    there = (each.name for each in state.members.on_nodes((record.node,)))
    names = tuple(sorted(name for name in there if name not in state.trials))
    return ask(state, names, TestLevel.LIGHT, f"node {record.node} was slow", now, bars=False)


def _again(state: JobState, known: SlowRanks, found: SlowRanks, finding: Finding, now: float) -> Step:
    """It lasts, or has come back: evidence for the incident that tells of it, whose cost goes on."""
    state, effects = _joined(state, known.incident, finding, now)
    says = f"{finding.cause} on {finding.subject}: {known.incident} tells of it already"
    if is_slow_now(state, known):
        state = put(state, known, seen_at=now, movable=found.movable, took_s=found.took_s)
        return Step(state, effects, Reason("straggler", says))
    kept = {"incident": known.incident, "stage": known.stage, "at": known.at, "tries": known.tries}
    record = msgspec.structs.replace(found, **kept)
    state, charged = charge_first(with_record(state, record), record, finding.step or state.step or 0)
    return Step(state, effects + charged, Reason("straggler", says))


def condition_over(state: JobState, event: Event, now: float) -> Step:
    """What was found wrong with a node is over: it is slow no more, or well of what it is avoided for."""
    assert isinstance(event, ConditionOver)
    for known in slow_now(state):
        if where(state, known) == event.node and known.slow.says == event.cause:
            return _ended(state, known, event.says, now)
    return nodes.condition_over(state, event, now)


def _ended(state: JobState, record: SlowRanks, why: str, now: float) -> Step:
    """Nothing is to be done about it, unless it comes again."""
    says = f"node {where(state, record)} is slow no more: {why}"
    step = stay(state)
    if record.stage is SlowStage.LEAVING:
        step = _call_off(state, record, says, now)
        record = next(each for each in step.state.slow if each.incident == record.incident)
    state, charged = ended(step.state, record)
    state, noted = _noted(state, record.incident, says, now)
    return Step(state, (*step.effects, *charged, *noted), Reason("straggler", says))


def _followed(state: JobState, known: SlowRanks, found: SlowRanks, finding: Finding, now: float) -> Step:
    """Ranks that were moved are slow on the other node too: nothing is wrong with the first one."""
    says = f"{finding.cause} on {finding.subject}: it follows the ranks"
    told = (
        f"the slowness followed {ranks_in_words(known.ranks)} from node {known.node} to node {found.node}: "
        f"node {known.node} is exonerated; look at the data of these ranks, and at what they have to do"
    )
    state, effects = _joined(state, known.incident, finding, now)
    if known.stage is not SlowStage.FOLLOWED:
        state, noted = _noted(state, known.incident, told, now)
        says, effects = told, effects + noted

        def without_node(incident: Incident) -> Incident:
            rank = known.ranks[0] if len(known.ranks) == 1 else None
            return msgspec.structs.replace(incident, culprit=Subject(state.job, rank=rank), known_at=now)

        state, cleared = rewrite(state, known.incident, without_node)
        effects += cleared
    elif is_slow_now(state, known):
        return Step(put(state, known, seen_at=now), effects, Reason("straggler", says))
    kept = {"incident": known.incident, "node": known.node, "ranks": known.ranks, "tries": known.tries}
    record = msgspec.structs.replace(found, **kept, movable=False, stage=SlowStage.FOLLOWED, at=now)
    state, charged = charge_first(with_record(state, record), record, finding.step or state.step or 0)
    return Step(state, effects + charged, Reason("straggler", says))


def hindrance(state: JobState, record: SlowRanks, now: float) -> str | None:
    """Why no spare is given the ranks now, in words; None when one is."""
    policy = state.policy
    assert policy is not None
    if record.slow.cause in NO_HELP:
        return NO_HELP[record.slow.cause]
    if policy.observe:
        return "the job is only observed"
    if policy.straggler.action is SlowAction.REPORT:
        return "faultPolicy.straggler.action is Report"
    if not record.movable:
        return "it is not likely that another node would help"
    if record.stage is SlowStage.FOLLOWED:
        return "its ranks are slow on any node"
    if record.tries and record.stage is SlowStage.TOLD:
        return "a swap was tried before, and told nothing"
    if not can_save(state):
        return "the script does not use holdfast.trainer, so that steps would be lost"
    if any(each.stage is SlowStage.MOVED for each in state.slow):
        return "it is not known yet what came of the swap before"
    is_leaving = not state.leaving.isdisjoint(state.ranked())
    if not in_force(state) or is_leaving or why_part(state, now) is not None:
        return "the round is about to change for another reason"
    recent = sum(1 for each in state.slow for at in each.tries if at > now - policy.evictions.per_s)
    if recent >= policy.evictions.count:
        return f"{recent} swaps in {policy.evictions.per_s:.0f} s, as many as the eviction budget allows evictions"
    return None if _has_spare(state, record) else "no spare is ready"


def _has_spare(state: JobState, record: SlowRanks) -> bool:
    """Whether a spare on another node could take the ranks at once, and was not slow itself."""
    return any(
        each.warm and each.node != record.node and not state.is_last_choice(each.node) for each in state.spares()
    )


def move(state: JobState, now: float) -> Step:
    """Begin what is to be moved, one at a time: else nobody could say which was slow. Call off what cannot be."""
    if not state.slow or not in_force(state):
        return stay(state)
    leaving = next((each for each in state.slow if each.stage is SlowStage.LEAVING), None)
    if leaving is not None:
        why = _why_off(state, leaving, now)
        return stay(state) if why is None else _call_off(state, leaving, why, now)
    for each in state.slow:
        if each.movable and is_slow_now(state, each) and hindrance(state, each, now) is None:
            return _begin(state, each, now)
    return stay(state)


def _begin(state: JobState, record: SlowRanks, now: float) -> Step:
    """The node is to leave in good order, and its incident is open until it has."""
    node = str(record.node)
    says = f"node {node} is slow ({record.slow.cause.value}): a spare takes its ranks, to see whether they are"
    action = Action(Rung.SWAP, now, f"save, then give the ranks of node {node} to a spare", says)

    def opened(incident: Incident) -> Incident:
        return msgspec.structs.replace(incident, state=IncidentState.OPEN, recovered_at=None)

    state, effects = rewrite(put(state, record, stage=SlowStage.LEAVING, at=now), record.incident, opened)
    state, acted = act(state, (record.incident,), action)
    departure = Departure(says, now + SWAP_WITHIN_S, node=node, cause=DepartureCause.SLOW)
    return Step(state, effects + acted, Reason("straggler", says)).then(expect, departure)


def _why_off(state: JobState, record: SlowRanks, now: float) -> str | None:
    """Why the ranks are not moved after all, in words."""
    policy, saving = state.policy, state.saving
    assert policy is not None
    if policy.straggler.action is SlowAction.REPORT:
        return "faultPolicy.straggler.action is Report now"
    if not any(each.cause is DepartureCause.SLOW and each.node == record.node for each in state.departures):
        return "its departure was called off"
    if not _has_spare(state, record):
        return "no spare is ready any more"
    if saving is not None and saving.saved is None and now >= gives_up_at(state):
        return NOT_SAVED
    return None


NOT_SAVED = "no checkpoint was committed in time, and no step is to be lost"


def _call_off(state: JobState, record: SlowRanks, why: str, now: float) -> Step:
    """The node keeps its ranks. What could not be saved is not tried again."""
    tries = (*record.tries, now) if why == NOT_SAVED else record.tries
    state = put(state, record, stage=SlowStage.TOLD, at=now, tries=tries)
    state = changed(state, departures=without_slow(state, (str(record.node),)))
    says = f"node {record.node} keeps its ranks: {why}"
    state, closed = _over(state, record, says, now)
    return Step(state, closed, Reason("straggler", says))


def _over(state: JobState, record: SlowRanks, says: str, now: float) -> tuple[JobState, tuple[Effect, ...]]:
    """Close its incident, unless that has become another fault's."""
    incident = next((each for each in state.open_incidents() if each.id == record.incident), None)
    if incident is None or incident.kind is not FindingKind.STRAGGLER or incident.recovered_round is not None:
        return state, ()
    return close(state, IncidentState.RECOVERED, now, says, only=record.incident)


def arrived(state: JobState, now: float) -> Step:
    """A new round is shown: who had to leave has no ranks any more, and stays as a spare."""
    if not state.slow or not isinstance(state.desired, Round):
        return stay(state)
    step = stay(state)
    for each in state.slow:
        if each.round != state.desired.number and each.stage is SlowStage.LEAVING:
            step = step.then(_swapped, each, now)
        elif each.round != state.desired.number and each.stage is SlowStage.MOVED:
            step = step.then(_watched_on, each, now)
    return step


def _swapped(state: JobState, record: SlowRanks, now: float) -> Step:
    round_, node = state.round, str(record.node)
    assert round_ is not None
    state = changed(state, departures=without_slow(state, (node,)))
    if any(share.node == node for share in round_.ranks):
        says = f"node {node} keeps its ranks: the spare was needed elsewhere"
        state, closed = _over(put(state, record, stage=SlowStage.TOLD, at=now), record, says, now)
        return Step(state, closed, Reason("straggler", says))
    holders = (round_.member_of(rank) for rank in record.ranks)
    to = in_words({share.node for share in holders if share is not None})
    if record.world_size != round_.world_size or not to:
        return _untold(state, record, f"node {node} has left, and the job has another size", now)
    does = f"round {round_.number}: {ranks_in_words(record.ranks)} to node {to}, node {node} stays as a spare"
    reason = f"to see whether {ranks_in_words(record.ranks)} is slow elsewhere"
    state, acted = act(state, (record.incident,), Action(Rung.SWAP, now, does, reason, round=round_.number))
    moved = msgspec.structs.replace(
        record,
        stage=SlowStage.MOVED,
        round=round_.number,
        since_step=None,
        told_steps=0,
        lasts=False,
        at=now,
        tries=(*record.tries, now),
    )
    step = Step(with_record(state, moved), acted, Reason("straggler", does))
    return step.then(_test_later, moved, now)


def _watched_on(state: JobState, record: SlowRanks, now: float) -> Step:
    """Another round than the one in which they were watched: they are watched from its first step on."""
    round_ = state.round
    assert round_ is not None
    if round_.world_size != record.world_size:
        return _untold(state, record, "the job has another size now, and its ranks other work", now)
    if any(share.node == record.node for share in round_.ranks):
        return _untold(state, record, f"node {record.node} was needed again", now)
    return stay(put(state, record, round=round_.number, since_step=None, at=now))


def _untold(state: JobState, record: SlowRanks, why: str, now: float) -> Step:
    """The swap tells nothing. There is no other one for this node."""
    tries = record.tries or (now,)
    state = put(state, record, stage=SlowStage.TOLD, lasts=False, at=now, tries=tries)
    says = f"it is not known whether the slowness stayed with node {record.node}: {why}"
    state, noted = _noted(state, record.incident, says, now)
    return Step(state, noted, Reason("straggler", says))


def judge(state: JobState, now: float) -> Step:
    """Say of ranks that were not slow on another node for long enough that the slowness stayed with the first."""
    step = stay(state)
    for each in state.slow:
        if each.stage is SlowStage.MOVED:
            step = step.then(_judged, each, now)
        elif each.stage is SlowStage.LEAVING and state.recovery is not None and state.step is not None:
            step = Step(changed(step.state, fault_step=state.step), step.effects, step.reason)  # what it left
    return step


def _judged(state: JobState, record: SlowRanks, now: float) -> Step:
    policy, newest = state.policy, state.round.number if state.round is not None else None
    assert policy is not None
    if record.node in state.avoided_nodes:
        return Step(without_record(state, record), (), Reason("straggler", f"node {record.node} has left"))
    if not in_force(state) or record.round != newest or state.step is None:
        return stay(state)
    if record.since_step is None:
        return stay(put(state, record, since_step=state.step, at=now))
    steps = max(policy.straggler.sustained or 0, STEPS_WATCHED + 2 * record.slow.steps_in(record.took_s))
    seconds = WATCHED_S + 2.0 * record.took_s
    watched = state.step - record.since_step
    if watched < steps or now < record.at + seconds:
        return stay(state)
    says = (
        f"the slowness stayed with node {record.node}: {ranks_in_words(record.ranks)} was not slow elsewhere for "
        f"{watched} steps"
    )
    state, effects = _noted(put(state, record, stage=SlowStage.STAYED, at=now), record.incident, says, now)
    step = Step(state, effects, Reason("straggler", says))
    return step.then(_evict, record, says, now) if policy.straggler.action is SlowAction.EVICT else step


def _evict(state: JobState, record: SlowRanks, why: str, now: float) -> Step:
    """The node leaves the job, within the eviction budget; else it stays the last to be given ranks."""
    policy, node = state.policy, str(record.node)
    assert policy is not None
    wanted = within_blast_radius(state, policy, Decision(Rung.SWAP, why, evict=node), now)
    others = sum(1 for each in state.eligible() if each.node != node)
    if wanted.evict is None or not legal_size(policy, others):
        says = f"node {node} stays as a spare: {'; '.join(wanted.guards) or 'the job could not train without it'}"
        state, effects = _noted(state, record.incident, says, now)
        return Step(state, effects, Reason("straggler", says, wanted.guards))
    # What is slow for this job may be fast enough for another: no mark, whatever cordons a node.
    state = nodes.avoid(without_record(state, record), NodeOrder(node, why), now)
    state, acted = act(state, (record.incident,), Action(Rung.SWAP, now, f"evict node {node}", why))
    return Step(state, acted, Reason("straggler", why, wanted.guards))


def _joined(state: JobState, id: str, finding: Finding, now: float) -> tuple[JobState, tuple[Effect, ...]]:
    return rewrite(state, id, lambda incident: join_finding(incident, finding, now))


def _noted(state: JobState, id: str, says: str, now: float) -> tuple[JobState, tuple[Effect, ...]]:
    """The incident tells, in its note and timeline, what became of it."""

    def noted(incident: Incident) -> Incident:
        note = f"{incident.note}; {says}" if incident.note else says
        return msgspec.structs.replace(incident, note=note, timeline=(*incident.timeline, Moment(now, says)))

    return rewrite(state, id, noted)
