"""Tests of the links between nodes: of all members before the first round, of a few without ranks now and then.

Before the first round each member's part is a self-test that bars it, with the same patience and the same end: a
round is formed once the lead has answered, or had its time. A lead that is gone, or silent, is asked no more:
another one leads the next try, and after a few tries the job begins without a test, for one that waits for ever is
worse. Of members without ranks a few are tested with each other, and nobody waits for them.

A node whose every link is bad is left out, as one is that fails a test of its own. A bad link between two sound
nodes is told as a link, and nobody leaves: its traffic may have another way, and each node may be innocent.
"""

from collections.abc import Iterable
from hashlib import blake2b

from msgspec.structs import replace

from holdfast.api.event import MemberTested
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import LinkPolicy, XidAction
from holdfast.api.round import Round
from holdfast.api.selftest import LINKS_FAILED, Judged, LinkTest, TestLevel, Verdict
from holdfast.api.status import JobPhase
from holdfast.api.xid import Recovery
from holdfast.watchdog.brain.roster import Member, MemberState
from holdfast.watchdog.brain.selftests import admitted, in_order, wanted_of
from holdfast.watchdog.brain.state import JobState, LinksTested, Trial
from holdfast.watchdog.brain.step import Effect, Examine, Reason, Step, changed, stay

WHY = "links between nodes, before the first round"
WHY_IDLE = "links between nodes without ranks, now and then"
# Two partners tell a bad node from its partner; with three every link has five others to be compared with.
IDLE_MIN, IDLE_MAX = 3, 4
# A lead that dies costs its limit; the second one that does is no chance.
LEADS_MAX = 2
# Of one test: what all of a fleet's links have is told in words.
FINDINGS_MAX = 16


def links_due(state: JobState, nodes: Iterable[str]) -> tuple[str, ...]:
    """Names of the members that test their links before `nodes` are given the ranks of the first round: all that
    are there, spares too. None when that is done, or was tried in vain.
    """
    policy = state.policy
    if policy is None or policy.links is None or state.round is not None or len(state.links.led) >= LEADS_MAX:
        return ()
    there = state.eligible()
    if len(there) < 2 or set(nodes) <= state.links.tested_at.keys():
        return ()
    return tuple(each.name for each in there)


def links_bar(state: JobState) -> bool:
    """Whether links are tested that a round waits for: none is formed of those who are through before the rest."""
    is_wanted = state.policy is not None and state.policy.links is not None
    return is_wanted and any(each.links is not None and each.bars for each in state.trials.values())


def ask_for_links(state: JobState, names: tuple[str, ...], now: float) -> Step:
    """Ask members to test the links between them before the first round; all wait for that."""
    assert state.policy is not None
    assert state.policy.links is not None
    lead = next((each for each in names if each not in state.links.led), names[0])
    led = (*state.links.led, lead)
    members = state.members.standing(names, MemberState.TESTING)
    step = _asked(state, (lead, *(each for each in names if each != lead)), state.policy.links, now, bars=True)
    says = f"asked of {len(names)} members, {lead} leads: no answer yet"
    after = changed(step.state, members=members, links=replace(step.state.links, led=led, says=says))
    return Step(after, step.effects, step.reason)


def idle_links_due(state: JobState, now: float) -> Step:
    """Test the links of spares now and then, of one that is suspect at once, with two or three others.

    Rings are left out, and a round that needs one of them ends its part: training goes first.
    """
    turns = _idle_turns(state)
    if not any(at <= now for at in turns.values()):
        return stay(state)
    assert state.policy is not None
    assert state.policy.links is not None
    # Those whose turn came first; the lead is the one that is longest trusted, not the one that is to be tested.
    names = tuple(sorted(turns, key=lambda name: (turns[name], name))[:IDLE_MAX][::-1])
    tested_at = dict(state.links.tested_at)
    for name in names:
        if (member := state.member(name)) is not None:
            tested_at[member.node] = now
    step = _asked(state, names, replace(state.policy.links, gang_s=0.0), now, bars=False)
    after = changed(step.state, links=replace(step.state.links, tested_at=tested_at))
    return Step(after, step.effects, step.reason)


def turn_of(state: JobState, node: str) -> tuple[JobState, str]:
    """The state in which the links of `node`, whose members have no ranks, are the next to be tested, once its
    devices are; and that, or why they are not, in words. Nothing where the job tests none, or keeps away from it.
    """
    if state.policy is None or state.policy.links is None or node in state.avoided_nodes:
        return state, ""
    if state.round is None:
        return state, "its links are tested with those of all others, before the first round"
    idle = sum(1 for each in state.spares() if each.node != node) + 1
    if idle < IDLE_MIN:
        return state, f"its links are not: that takes {IDLE_MIN} members without ranks, and there are {idle}"
    tested_at = {name: at for name, at in state.links.tested_at.items() if name != node}
    says = f"then, while a round runs, its links to {min(idle, IDLE_MAX) - 1} others without ranks"
    return changed(state, links=replace(state.links, tested_at=tested_at)), says


def next_idle_links(state: JobState) -> float | None:
    """When links of members without ranks are next to be tested."""
    return min(_idle_turns(state).values(), default=None)


def _idle_turns(state: JobState) -> dict[str, float]:
    """When the links of each member without ranks are to be tested; none while too few are idle to compare."""
    policy = state.policy
    if policy is None or policy.links is None or state.phase is not JobPhase.RUNNING:
        return {}
    if any(each.links is not None for each in state.trials.values()):
        return {}
    idle = [each for each in state.spares() if each.name not in state.trials]
    if len(idle) < IDLE_MIN:
        return {}
    suspected: dict[str, float] = {each.node: each.at for each in state.suspicions}
    suspected.update({node: each.since for node, each in state.probation.items()})
    turns = {}
    for each in idle:
        tested_at = state.links.tested_at.get(each.node, each.joined_at - policy.corruption.self_test_every_s)
        is_suspect = suspected.get(each.node, tested_at) > tested_at
        turns[each.name] = tested_at if is_suspect else tested_at + policy.corruption.self_test_every_s
    return turns


def _asked(state: JobState, names: tuple[str, ...], wanted: LinkPolicy, now: float, *, bars: bool) -> Step:
    """Ask these members for a test, led by the first of them."""
    number = state.trial_count + 1
    members = [each for name in names if (each := state.member(name)) is not None]
    lead = members[0]
    part = LinkTest(
        token=_token(state, members, number),
        host=lead.address,
        port=lead.ports[number % len(lead.ports)],
        flow_s=wanted.flow_s,
        gang_s=wanted.gang_s,
        limit_s=wanted.timeout_s,
    )
    parts = {each.name: part for each in members}
    parts[lead.name] = replace(part, leads=True, members=tuple(parts), usual=state.links.usual)
    reason = WHY if bars else WHY_IDLE
    trials = {
        name: Trial(name, number, TestLevel.LIGHT, reason, now, bars=bars, began=now, links=each)
        for name, each in parts.items()
    }
    links = replace(state.links, excused=())
    all_trials = in_order({**state.trials, **trials})
    after = changed(state, trials=all_trials, trial_count=number, links=links)
    effects: tuple[Effect, ...] = tuple(Examine(name, wanted_of(after, each)) for name, each in trials.items())
    says = f"{len(members)} members test the links between them, {lead.name} leads"
    return Step(after, effects, Reason("link test", says))


def _token(state: JobState, members: Iterable[Member], number: int) -> str:
    """What only the members of this test know: made of what each launcher told the watchdog alone."""
    known = "/".join([state.incarnation, str(number), *(each.boot for each in members)])
    return blake2b(known.encode(), digest_size=16).hexdigest()


def answered(state: JobState, trial: Trial, event: MemberTested, now: float) -> tuple[Step, tuple[Finding, ...]]:
    """A member's part is over: what is known then, and what was found, if it is the lead that answers.

    A member that came to nobody has FAILED to; Unknown is the answer of one that had a reason not to come.
    """
    part, judged = trial.links, event.links
    assert part is not None
    state = admitted(state, trial.member, now)
    if part.leads:  # the test is over for all
        for other in [each.member for each in state.trials.values() if each.number == trial.number]:
            state = admitted(state, other, now)
    if judged is None or not part.leads:
        links = state.links
        if event.verdict is Verdict.UNKNOWN:
            links = replace(links, excused=(*links.excused, trial.member))
        does = "lead the test of links" if part.leads else "test its links"
        says = f"{trial.member} could not {does}: {event.says or 'no reason given'}"
        if event.verdict is Verdict.PASSED:
            says = f"{trial.member} has tested its links"
        if part.leads:
            links = replace(links, says=says)
        return Step(changed(state, links=links), (), Reason("link test", says)), ()
    found = _findings(state, trial, judged, now)
    bad: dict[str, str] = {}
    for finding in found:
        subject = finding.subject
        told = f"{subject}: {finding.error}"
        bad.update({node: told for node in (subject.node, subject.peer) if node is not None})
    there = (each.node for name in part.members if (each := state.member(name)) is not None)
    tested_at = {**state.links.tested_at, **dict.fromkeys(there, now)}
    usual = judged.usual or state.links.usual
    after = changed(state, links=LinksTested(tested_at, (), judged.says, bad, usual=usual))
    return Step(after, (), Reason("link test", f"{judged.verdict}: {judged.says}")), found


def _findings(state: JobState, trial: Trial, judged: Judged, now: float) -> tuple[Finding, ...]:
    """What the lead has found, of members of its test alone, and not of those that had to leave it: a round came
    between, or their process ended.
    """
    assert trial.links is not None
    left = {*state.links.excused, *(state.desired.names if isinstance(state.desired, Round) else ())}
    there = (each for name in trial.links.members if (each := state.member(name)) is not None)
    among = {each.name: each for each in there if each.name not in left}
    bad = {**dict.fromkeys(judged.absent, "did not reach the member that led the test"), **judged.nodes}
    found = [
        _finding(trial, Subject(state.job, node=among[name].node, member=name), says, now)
        for name, says in bad.items()
        if name in among
    ]
    for link in judged.links:
        one, other = among.get(link.one), among.get(link.other)
        if one is not None and other is not None and one.node != other.node:
            subject = Subject(state.job, node=one.node, member=one.name, peer=other.node)
            found.append(_finding(trial, subject, link.says, now))
    return tuple(found[:FINDINGS_MAX])


def _finding(trial: Trial, subject: Subject, says: str, now: float) -> Finding:
    """Compared with the others of one moment, it is likely and no proof. A node leaves for it, no link does."""
    return Finding(
        kind=FindingKind.SELF_TEST,
        subject=subject,
        cause=LINKS_FAILED,
        evidence=(Evidence(f"link test led by {trial.member}", says, now),),
        confidence=Confidence.PROBABLE,
        began_at=now,
        error=says,
        asks=XidAction.WATCH if subject.peer is not None else XidAction.EVICT,
        remedy=Recovery.NOTHING,
    )
